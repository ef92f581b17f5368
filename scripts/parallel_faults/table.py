"""The layouts, the faults of each, and what a finding must say of a fault.

Comes in: nothing. Goes out: `LAYOUTS`, `FAULTS`, `CELLS`, and the programs by name. Called by all others.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from scripts.parallel_faults import layouts, stages
from scripts.parallel_faults.model import Parts, TrainingCase


@dataclass(frozen=True)
class ParallelLayout:
    """A layout: its program, its ranks, its optimizer, and the axes as `--layout` takes them.

    `comparable` is False where one process computes something else (batch norm over a rank's samples).
    """

    make: Callable[[TrainingCase], layouts.Training]
    ranks: int
    optimizer: str
    axes: str
    whole: Callable[[TrainingCase], Parts] = Parts
    tied: bool = False
    comparable: bool = True


LAYOUTS = {
    "ddp": ParallelLayout(layouts.ddp, 2, "adamw", "dp=2"),
    "dp_by_hand": ParallelLayout(layouts.dp_by_hand, 2, "sgd", "dp=2"),
    "ddp_no_sync": ParallelLayout(layouts.ddp_no_sync, 2, "adamw", "dp=2"),
    "ddp_checkpoint": ParallelLayout(layouts.ddp_checkpoint, 2, "adamw", "dp=2"),
    "ddp_buffers": ParallelLayout(
        layouts.ddp_buffers, 2, "adamw", "dp=2", layouts.BatchNormParts, comparable=False
    ),
    "zero1": ParallelLayout(layouts.zero1, 2, "adamw", "dp=2"),
    "fsdp2": ParallelLayout(layouts.fsdp2, 2, "adamw", "dp=2"),
    "tp_by_hand": ParallelLayout(layouts.tp_by_hand, 2, "sgd", "tp=2"),
    "tp_sp_by_hand": ParallelLayout(layouts.tp_sp_by_hand, 2, "adamw", "tp=2"),
    "dtensor_tp": ParallelLayout(layouts.dtensor_tp, 2, "adamw", "tp=2"),
    "dtensor_tp_sp": ParallelLayout(layouts.dtensor_tp_sp, 2, "adamw", "tp=2"),
    "pipeline_by_hand": ParallelLayout(stages.pipeline_in_stages, 2, "sgd", "pp=2", tied=True),
    "cp_by_hand": ParallelLayout(stages.cp_by_hand, 2, "adamw", "cp=2"),
    "moe_ep": ParallelLayout(stages.moe_ep, 2, "adamw", "ep=2", stages.ExpertParts),
    "dp_tp_by_hand": ParallelLayout(layouts.dp_tp_by_hand, 4, "sgd", "dp=2,tp=2"),
    "fsdp_tp": ParallelLayout(layouts.fsdp_tp, 4, "adamw", "dp=2,tp=2"),
}

# The variants that one process has, too: it needs no microbatches, and draws other masks.
ALONE_VARIANTS = ("plain", "clip")
DATA = ("ddp", "dp_by_hand", "ddp_no_sync", "ddp_checkpoint", "zero1", "fsdp2", "moe_ep")
TENSOR = ("tp_by_hand", "tp_sp_by_hand", "dp_tp_by_hand")
RING = ("tp_by_hand", "dp_tp_by_hand")


# Layouts of one optimizer, whose right runs are compared with each other. As many data-parallel ranks have
# the same samples each, which `ddp`, with its sampler, has not.
ACROSS = (
    ("zero1", "fsdp2"),
    ("fsdp2", "tp_sp_by_hand"),
    ("dtensor_tp", "ddp"),
    ("tp_sp_by_hand", "dtensor_tp_sp"),
    ("fsdp_tp", "dtensor_tp"),
    ("ddp_checkpoint", "zero1"),
    ("ddp_no_sync", "zero1"),
    ("cp_by_hand", "fsdp_tp"),
    ("tp_by_hand", "dp_by_hand"),
    ("dp_tp_by_hand", "tp_by_hand"),
    ("dp_by_hand", "dp_tp_by_hand"),
)


@dataclass(frozen=True)
class ParallelFault:
    """A fault: what it is, where it exists, and what a finding says that names it.

    `kind` is a short name of what it is, `words` patterns (regular expressions, case ignored) that one
    finding must have, all of them; `words_of` has others for some layouts. `ranks` are the culprits, empty
    where all ranks are. `sight` says why one capture alone cannot show it, "" where it can.
    """

    name: str
    layouts: tuple[str, ...]
    kind: str
    words: tuple[str, ...]
    ranks: tuple[int, ...] = ()
    variant: str = "plain"
    words_of: tuple[tuple[str, tuple[str, ...]], ...] = ()
    sight: str = ""

    def said(self, layout: str, way: str) -> tuple[str, ...]:
        """Return the patterns that a finding has which names this fault: the place, what it is, and with a
        golden run of the same layout one of the culprits."""
        words = (*dict(self.words_of).get(layout, self.words), KINDS[self.kind])
        if not self.ranks or way != "same":
            return words
        culprits = "|".join(map(str, self.ranks))
        return (
            *words,
            rf"\brank ({culprits})\b|\branks [\d,-]*\b({culprits})\b|all \d ranks|ranks 0-\d",
        )


# So a finding says that the target lacks a call that the golden run has.
_GONE = r"only in the golden|the target has none|missing collective|\blacks\b"
# A finding says what a fault is, if it has one of these.
KINDS = {
    "other weights": r"other weight|other values|(different )?values differ|different values",
    "same samples": r"sample|other input|\bposition",
    "other samples": r"sample|other input|broadcast",
    "not reduced": rf"not reduced|not summed|partial|{_GONE}",
    "scaled": r"(?<![\d.])(2|4|0\.5|0\.25)(\.0+)? times|\bx ?[24]\b|not divided|a factor of"
    r"|__r?mul__\S* runs only in the target|__i?truediv__\S* runs only in the golden|run averages",
    "missing collective": r"is missing|not reduced|not summed|partial|"
    rf"Distributed.*({_GONE})|({_GONE}).*Distributed",
    "wrong group": r"reduced in the group|\bgroup\b.*(where|golden|not|instead|another)",
    "wrong slice": r"other weight|other values|'s part|slice|has the values",
    "stale parameter": rf"stale|not updated?|did not|no update|skipp|not (gathered|given)|{_GONE}",
    "other rate": r"\blr\b|learning rate",
    "local norm": rf"a norm of|clip coefficient|times those|all_reduce.*({_GONE})",
    "order": r"only in the target|gets .*where|other order|order of|turned|swap|'s part",
    "wrong element": r"a hook for|another gradient than|wrong collective"
    r"|collective itself|is not what|not the (sum|mean)|add up",
    "left out": rf"{_GONE}|fewer|other calls|left out|\bzeros?\b|microbatch|only in the target",
    "swapped": r"swap|other order|other call|other input|sample|'s part|gets .*where",
    "bias": r"bias",
    "positions": r"arange|positions|configur|other",
    "double reduction": r"twice|one too many|only in the target|(?<![\d.])2(\.0+)? times|\bx ?2\b",
    "reduced early": rf"not reduced|reduced before|{_GONE}|only in the target",
    "too much": r"only in the target|twice|already|has none",
    "same masks": r"mask|random",
    "other masks": r"mask|random",
    "recomputed": r"mask|random|recompute",
    "mask left out": rf"masked_fill|{_GONE}",
    "buffers": r"buffer|broadcast|running_",
}


# "block" is the module around a checkpointed one.
_N2 = r"blocks\.0\.(block\.)?n2\.weight"
_MOVED = r"blocks\.1\.(block\.)?n2\.weight"
_STALE = r"blocks\.0\.mlp\.up\.weight"
_DOWN = r"blocks\.0\.mlp\.down"
_UP = r"blocks\.1\.mlp\.up"
_SAME_ON_ALL = "all ranks do the same, and nothing in one run says that it is too much"

FAULTS = (
    ParallelFault(
        "other_start",
        (
            *DATA[:5],
            "tp_by_hand",
            "tp_sp_by_hand",
            "dtensor_tp",
            "dp_tp_by_hand",
            "cp_by_hand",
            "moe_ep",
        ),
        "other weights",
        (_MOVED,),
        (1,),
    ),
    ParallelFault(
        "other_start",
        ("fsdp2",),
        "other weights",
        (_MOVED,),
        (1,),
        sight="each rank has another shard",
    ),
    ParallelFault(
        "other_start", ("pipeline_by_hand",), "other weights", (r"(embedding|head)\.weight",), (1,)
    ),
    ParallelFault(
        "same_samples",
        (*DATA, "ddp_buffers"),
        "same samples",
        (r"samples|batch|input",),
        (1,),
    ),
    ParallelFault(
        "same_samples",
        ("dp_tp_by_hand", "fsdp_tp"),
        "same samples",
        (r"samples|batch|input",),
        (2, 3),
    ),
    ParallelFault(
        "other_samples",
        (*TENSOR, "dtensor_tp", "dtensor_tp_sp", "cp_by_hand", "fsdp_tp", "pipeline_by_hand"),
        "other samples",
        (r"samples|batch|input|target",),
        (1,),
    ),
    ParallelFault(
        "not_reduced",
        (
            "ddp",
            "dp_by_hand",
            "ddp_no_sync",
            "ddp_checkpoint",
            "zero1",
            "fsdp2",
            "tp_sp_by_hand",
            "dtensor_tp_sp",
            "cp_by_hand",
        ),
        "not reduced",
        (_N2,),
        words_of=(("dtensor_tp_sp", (r"blocks\.0\.n2\b",)),),
    ),
    ParallelFault("not_reduced", ("moe_ep",), "not reduced", (r"blocks\.0\.mlp\.router\.weight",)),
    ParallelFault(
        "not_reduced", ("pipeline_by_hand",), "not reduced", (r"(embedding|head)\.weight",)
    ),
    ParallelFault("dp_not_reduced", ("dp_tp_by_hand",), "not reduced", (_N2,)),
    ParallelFault(
        "head_norm_not_reduced", TENSOR, "not reduced", (r"blocks\.0\.attention\.q_norm\.weight",)
    ),
    ParallelFault(
        "sum_for_mean",
        (
            "ddp",
            "dp_by_hand",
            "ddp_no_sync",
            "ddp_checkpoint",
            "zero1",
            "fsdp2",
            "moe_ep",
            "dp_tp_by_hand",
            "fsdp_tp",
        ),
        "scaled",
        (r"2|sum|scale",),
        sight=_SAME_ON_ALL,
    ),
    ParallelFault(
        "mean_for_sum", ("cp_by_hand",), "scaled", (r"0\.5|2|mean|scale",), sight=_SAME_ON_ALL
    ),
    ParallelFault(
        "no_sum_after_row", (*TENSOR, "dtensor_tp", "fsdp_tp"), "missing collective", (_DOWN,)
    ),
    ParallelFault("no_sum_before_column", TENSOR, "missing collective", (_UP,)),
    ParallelFault(
        "no_sum_of_keys", ("cp_by_hand",), "missing collective", (r"attention|reduce_scatter",)
    ),
    ParallelFault("logits_gathered", RING, "too much", (r"all_gather",)),
    ParallelFault("wrong_group", ("dp_tp_by_hand",), "wrong group", (_DOWN, "group"), ()),
    ParallelFault("dp_wrong_group", ("dp_tp_by_hand",), "wrong group", (_N2,), ()),
    ParallelFault("wrong_slice", TENSOR, "wrong slice", (r"blocks\.1\.mlp\.up\.weight",), (1,)),
    ParallelFault(
        "wrong_slice",
        ("pipeline_by_hand",),
        "wrong slice",
        (r"blocks\.1\.",),
        (1,),
        sight="a stage with the weights of another is a model, too",
    ),
    ParallelFault(
        "wrong_slice", ("moe_ep",), "wrong slice", (r"blocks\.1\.mlp\.experts\.2",), (1,)
    ),
    ParallelFault(
        "wrong_slice", ("cp_by_hand",), "same samples", (r"samples|batch|input|sequence",), (1,)
    ),
    ParallelFault(
        "wrong_source",
        ("dp_by_hand",),
        "other weights",
        (_MOVED,),
        (),
        sight="all ranks have the same weights",
    ),
    ParallelFault(
        "wrong_source",
        RING,
        "other samples",
        (r"samples|batch|input|broadcast",),
        (),
        sight="all ranks have the same samples",
    ),
    ParallelFault(
        "stale_update",
        (
            "ddp",
            "dp_by_hand",
            "ddp_no_sync",
            "tp_by_hand",
            "tp_sp_by_hand",
            "dp_tp_by_hand",
            "cp_by_hand",
        ),
        "stale parameter",
        (_STALE,),
        (1,),
    ),
    ParallelFault(
        "other_rate",
        (
            "ddp",
            "dp_by_hand",
            "ddp_no_sync",
            "ddp_checkpoint",
            "zero1",
            "fsdp2",
            "tp_by_hand",
            "tp_sp_by_hand",
            "dtensor_tp",
            "dtensor_tp_sp",
            "cp_by_hand",
            "moe_ep",
            "pipeline_by_hand",
            "dp_tp_by_hand",
            "fsdp_tp",
        ),
        "other rate",
        (r"lr|rate",),
        (1,),
    ),
    ParallelFault(
        "loss_doubled",
        (
            "ddp",
            "dp_by_hand",
            "fsdp2",
            "tp_by_hand",
            "tp_sp_by_hand",
            "dtensor_tp",
            "cp_by_hand",
            "moe_ep",
        ),
        "scaled",
        (r"2|scale",),
        sight=_SAME_ON_ALL,
    ),
    ParallelFault(
        "not_divided",
        ("ddp_no_sync", "pipeline_by_hand"),
        "scaled",
        (r"2|4|scale",),
        sight=_SAME_ON_ALL,
    ),
    ParallelFault(
        "local_norm", (*TENSOR, "fsdp2"), "local norm", (r"gradient|sqrt|norm|clip",), (), "clip"
    ),
    ParallelFault("gather_order", ("tp_sp_by_hand",), "order", (_UP,)),
    ParallelFault("gather_order", ("cp_by_hand",), "order", (r"attention",)),
    ParallelFault(
        "gather_order", ("moe_ep",), "order", (r"mlp",), sight="each rank puts its own back"
    ),
    ParallelFault(
        "wrong_element",
        (
            "ddp",
            "dp_by_hand",
            "tp_by_hand",
            "tp_sp_by_hand",
            "dp_tp_by_hand",
            "cp_by_hand",
            "moe_ep",
        ),
        "wrong element",
        (r"all_reduce|reduce_scatter",),
        (1,),
        words_of=(("ddp", (r"all_reduce|gradient",)),),
    ),
    ParallelFault(
        "microbatch_left_out",
        ("ddp_no_sync",),
        "left out",
        (r"microbatch|fewer|missing|calls",),
        (1,),
    ),
    ParallelFault(
        "microbatch_left_out", ("pipeline_by_hand",), "left out", (r"zero|scale|mul|gradient",)
    ),
    ParallelFault(
        "microbatches_swapped",
        ("pipeline_by_hand",),
        "swapped",
        (r"cross_entropy|swap|samples",),
        sight="targets are not sent",
    ),
    ParallelFault("gradients_swapped", ("pipeline_by_hand",), "swapped", (r"recv|swap|gradient",)),
    ParallelFault("bias_before_sum", TENSOR, "bias", (_DOWN,)),
    ParallelFault(
        "positions_not_offset",
        ("cp_by_hand", "tp_sp_by_hand", "dtensor_tp_sp"),
        "positions",
        (r"positions",),
        (1,),
    ),
    ParallelFault(
        "reduced_twice", ("dp_by_hand", "ddp"), "double reduction", (r"twice|all_reduce|2",)
    ),
    ParallelFault("reduced_twice", ("tp_sp_by_hand", "cp_by_hand"), "double reduction", (_N2,)),
    ParallelFault("reduced_twice", ("moe_ep",), "double reduction", (r"router",)),
    ParallelFault(
        "reduced_twice", ("pipeline_by_hand",), "double reduction", (r"(embedding|head)\.weight",)
    ),
    ParallelFault("summed_twice", RING, "double reduction", (_DOWN,)),
    ParallelFault("reduced_early", ("ddp_no_sync",), "reduced early", (r"reduc|gradient",)),
    ParallelFault(
        "reduced_early", ("dp_by_hand",), "reduced early", (r"reduc|gradient",), (), "accumulate"
    ),
    ParallelFault(
        "same_masks", (*TENSOR, "cp_by_hand"), "same masks", (r"dropout|mask",), (1,), "dropout"
    ),
    ParallelFault("other_masks", RING, "other masks", (r"dropout|mask",), (1,), "dropout"),
    ParallelFault(
        "recomputed_otherwise",
        ("ddp_checkpoint",),
        "recomputed",
        (r"dropout|recomput",),
        (),
        "dropout",
    ),
    ParallelFault("embedding_mask", TENSOR, "mask left out", (r"embedding|masked_fill",)),
    ParallelFault("sum_of_exponentials", TENSOR, "missing collective", (r"all_reduce|exp|log",)),
    ParallelFault(
        "overflow_alone", RING, "stale parameter", (r"update|skip|all_reduce",), (1,), "scaled"
    ),
    ParallelFault(
        "buffers_not_synced", ("ddp_buffers",), "buffers", (r"running_(mean|var)|broadcast",), (1,)
    ),
    ParallelFault("not_gathered", ("zero1",), "stale parameter", (r"weight|broadcast|parameter",)),
    ParallelFault("experts_not_divided", ("moe_ep",), "scaled", (r"experts",), sight=_SAME_ON_ALL),
)


def cells(chosen: tuple[str, ...] = ()) -> Iterator[tuple[str, ParallelFault]]:
    """Yield each fault in each of its layouts."""
    for layout in chosen or tuple(LAYOUTS):
        for fault in FAULTS:
            if layout in fault.layouts:
                yield layout, fault


def variants_of(layout: str) -> list[str]:
    """Return the variants of a layout that its faults need, plain first."""
    needed = {fault.variant for each, fault in cells((layout,)) if each == layout}
    return ["plain", *sorted(needed - {"plain"})]


def case_name(case: TrainingCase, again: bool = False) -> str:
    """Return the name of a case's folder: honest, honest_again, one, or the fault; and the variant."""
    name = case.fault or ("one" if case.world == 1 else "honest_again" if again else "honest")
    return name + ("" if case.variant == "plain" or case.fault else f"-{case.variant}")


def make_parallel_training(case: TrainingCase) -> layouts.Training:
    """Make the program of a case; with one rank that of the whole model."""
    layout = LAYOUTS[case.layout]
    if case.world == 1:
        return layouts.one(case, layout.optimizer, layout.whole(case), layout.tied)
    return layout.make(case)
