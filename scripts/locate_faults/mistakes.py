"""Thirty mistakes in scripts, not in kernels: does `locate` name the call, or the missing one, with its line?

    python -m scripts.locate_faults.mistakes [--names NAME ...] [--ways tensors statistics]
                                             [--captures FOLDER]

Each mistake is an edit of one of seven small trainings, which have the form of PyTorch's examples and of
Hugging Face's models. The training as it stands is the golden run, captured without oneDNN, so that
rounding differs, too; the edited one is the target. A mistake is named where the first row of `locate` has
a line that the edit changed, on either side, or the line that `Mistake.line` says where no operator stands in
an edited one. Each golden run is also searched beside a run of the same script, in which nothing may be
named.
"""

import argparse
import difflib
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ray_precheck.capture import Capture
from scripts.locate_faults.looking.replaying import forget, remembered
from scripts.locate_faults.twins import STATISTICS, twin_of
from scripts.measuring import CAPTURES, rows_of_table
from scripts.torch_ways import onednn

# The trainings are edited as texts, and run from copies.
_TRAININGS = CAPTURES / "trainings"


def text_of_training(program: str) -> str:
    """Return a training as it stands."""
    return (_TRAININGS / f"{program}.py").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Mistake:
    """An edit of a training: each of `edits` replaces a text that stands there once. `line` is a part of the
    line that is to be named where no operator stands in an edited line."""

    name: str
    program: str
    edits: tuple[tuple[str, str], ...]
    line: str = ""


def _mistake(name: str, program: str, old: str, new: str, line: str = "") -> Mistake:
    return Mistake(name, program, ((old, new),), line)


MISTAKES = (
    _mistake("RoPE without its sign", "llama", "torch.cat((-x2, x1)", "torch.cat((x2, x1)"),
    _mistake("RoPE subtracts", "llama", "(q * cos) + (rot", "(q * cos) - (rot"),
    _mistake("keys repeated in blocks", "llama",
        "    hidden_states = hidden_states[:, :, None, :, :].expand(batch, heads, n_rep, length, dim)\n"
        "    return hidden_states.reshape(batch, heads * n_rep, length, dim)",
        "    return hidden_states.repeat(1, n_rep, 1, 1)"),
    _mistake("attention without its scale", "llama", "        scores = scores / math.sqrt(DIM)\n", ""),
    _mistake("mask of the wrong side", "llama",
        "torch.triu(mask, diagonal=1)", "torch.tril(mask, diagonal=-1)"),
    _mistake("another eps", "llama", "eps=1e-6", "eps=1e-5", "variance + self.variance_epsilon"),
    _mistake("a lost residual", "llama",
        "        hidden_states = residual + hidden_states\n        residual", "        residual"),
    Mistake("labels not shifted", "llama",
        (("logits[..., :-1, :].contiguous()", "logits"), ("labels[..., 1:].contiguous()", "labels"))),
    Mistake("labels shifted the wrong way", "llama",
        (("logits[..., :-1, :]", "logits[..., 1:, :]"), ("labels[..., 1:]", "labels[..., :-1]"))),
    _mistake("gate and up swapped", "llama",
        "F.silu(self.gate_proj(x)) * self.up_proj(x)", "F.silu(self.up_proj(x)) * self.gate_proj(x)"),
    _mistake("heads without their transpose", "llama",
        "view(batch, length, HEADS, DIM).transpose(1, 2)", "view(batch, HEADS, length, DIM)"),
    _mistake("padding in the loss", "llama",
        "        labels = labels.masked_fill(labels == PAD, -100)\n", ""),
    _mistake("gradients accumulated without a mean", "llama",
        "            loss = loss / accumulation_steps\n", ""),
    _mistake("a double softmax", "cnn", "        return x\n", "        return F.softmax(x, dim=1)\n"),
    _mistake("brackets of the normalisation", "cnn", "(x - 0.1307) / 0.3081", "x - 0.1307 / 0.3081"),
    _mistake("gradients not set to zero", "cnn",
        "        optimizer.zero_grad()\n", "", "optimizer.step()"),
    _mistake("trained in eval mode", "cnn", "model.train()", "model.eval()", "self.bn1(self.conv1(x))"),
    _mistake("a variance for a deviation", "vae", "torch.exp(0.5 * logvar)", "torch.exp(logvar)"),
    _mistake("a mean for a sum", "vae", "torch.sum(1 + logvar", "torch.mean(1 + logvar"),
    _mistake("another reduction", "vae", 'reduction="sum"', 'reduction="mean"'),
    _mistake("a double sigmoid", "vae",
        "binary_cross_entropy(recon_x", "binary_cross_entropy_with_logits(recon_x"),
    _mistake("a lost detach", "dqn", "    next_state_values = next_state_values.detach()\n", ""),
    _mistake("ends of episodes not masked", "dqn",
        "    next_state_values = next_state_values * (1.0 - done)\n", ""),
    _mistake("gradients not clipped", "dqn",
        "    torch.nn.utils.clip_grad_norm_(policy_net.parameters(), 0.1)\n", ""),
    _mistake("a wrong Function.backward", "function",
        "(sigmoid_i * (1 + i * (1 - sigmoid_i)))", "(sigmoid_i * (1 - sigmoid_i))"),
    _mistake("a lost square in a Function.backward", "function", "input**2 - 1", "input - 1"),
    _mistake("a Function.backward without its gradient", "function",
        "return grad_output * 1.5 * (5", "return 1.5 * (5"),
    _mistake("padding mask inverted", "encoder", "[:, None, :] == 0", "[:, None, :] == 1"),
    _mistake("pooling over padding", "encoder", "(x * mask).sum(1) / mask.sum(1)", "x.mean(1)"),
    _mistake("a noise schedule without its root", "diffusion",
        "    sqrt_alphas_cumprod_t = alphas_cumprod.gather(-1, t)[:, None].sqrt()",
        "    sqrt_alphas_cumprod_t = alphas_cumprod.gather(-1, t)[:, None]"),
)  # fmt: skip
TENSORS = "tensors"


def sources_of(mistake: Mistake) -> tuple[str, str]:
    """Return the edited training and the golden one."""
    golden = target = text_of_training(mistake.program)
    for old, new in mistake.edits:
        assert target.count(old) == 1, (
            f"{mistake.name}: {old!r} stands there {target.count(old)} times"
        )
        target = target.replace(old, new)
    return target, golden


def expected_lines(mistake: Mistake) -> tuple[set[int], set[int]]:
    """Return the numbers of the lines that may be named, of the target and of the golden run."""
    target, golden = (text.splitlines() for text in sources_of(mistake))
    if mistake.line:
        ours, theirs = (
            {number for number, line in enumerate(side, 1) if mistake.line in line}
            for side in (target, golden)
        )
        return ours, theirs
    found: tuple[set[int], set[int]] = set(), set()
    for kind, begin, end, first, last in difflib.SequenceMatcher(
        None, target, golden, autojunk=False
    ).get_opcodes():
        if kind != "equal":
            found[0].update(range(begin + 1, end + 1))
            found[1].update(range(first + 1, last + 1))
    return found


def capture_training(folder: Path, source: str, *, golden: bool) -> Path:
    """Write a training into a folder, run it there, and return its capture of both steps with tensors."""
    folder.mkdir(parents=True)
    script = folder / "train.py"
    script.write_text(source, encoding="utf-8")
    names: dict[str, object] = {"__name__": "train"}
    exec(compile(source, str(script), "exec"), names)
    settings: dict[str, Any] = {"task": "tensor", "level": "mix", "steps": "0-1"}
    with onednn(not golden), Capture(folder / "dump", framework="pytorch", **settings):
        names["main"]()  # type: ignore[operator]
    return folder / "dump"


def _statistics_of(dump: Path, scratch: Path) -> Path:
    twins = scratch / dump.parent.name
    for each in sorted(dump.rglob("dump.json")):
        twin_of(each, STATISTICS, twins)
    return twins


def placed_rows(target: Path, golden: Path) -> list[dict[str, str]]:
    """Return the rows of `locate` that have a place."""
    # Not at the top: captures are made without it.
    from ray_precheck.commands.locate.run import locate_captures

    out = Path(tempfile.mkdtemp(prefix="mistakes_"))
    try:
        with remembered():
            report = locate_captures(target, golden, out=out, devices=(1,))
        rows = rows_of_table(report.table.parent, report.table.name)
        return [row for row in rows if row["Place"]]
    finally:
        shutil.rmtree(out)


def has_the_line(mistake: Mistake, rows: Sequence[dict[str, str]]) -> bool:
    """Return whether the first row has a line of the mistake."""
    if not rows:
        return False
    path, _, rest = rows[0]["Source"].partition(", in ")[0].rpartition(":")
    ours, theirs = expected_lines(mistake)
    lines = theirs if Path(path).parent.name.startswith("golden") else ours
    return rest.isdigit() and int(rest) in lines


def searched(
    mistakes: Sequence[Mistake], ways: Sequence[str], folder: Path
) -> Iterator[tuple[str, str, list[dict[str, str]], bool]]:
    """Yield the name of each mistake, the way, its rows, and whether it is named; then the honest pairs."""
    programs = dict.fromkeys(each.program for each in mistakes)
    for program in programs:
        forget()
        source = text_of_training(program)
        golden = capture_training(folder / f"golden-{program}", source, golden=True)
        pairs = [
            (each, capture_training(folder / each.name.replace(" ", "-"), sources_of(each)[0], golden=False))
            for each in mistakes
            if each.program == program
        ]  # fmt: skip
        honest = capture_training(folder / f"honest-{program}", source, golden=False)
        for way in ways:
            for each, target in [*pairs, (None, honest)]:
                if way == TENSORS:
                    rows = placed_rows(target, golden)
                else:
                    rows = placed_rows(
                        *(_statistics_of(side, folder / way) for side in (target, golden))
                    )
                if each is None:
                    yield f"honest {program}", way, rows, not rows
                else:
                    yield each.name, way, rows, has_the_line(each, rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Capture, search, and print what the first row says of each mistake."""
    parser = argparse.ArgumentParser(description="mistakes in scripts: are they named?")
    parser.add_argument("--names", nargs="+", help="words of the names of mistakes; all by default")
    parser.add_argument("--ways", nargs="+", default=(TENSORS, STATISTICS))
    parser.add_argument("--captures", type=Path, help="an empty folder, in which the captures stay")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    chosen = [
        each for each in MISTAKES if not options.names or any(word in each.name for word in options.names)
    ]  # fmt: skip
    folder = options.captures or Path(tempfile.mkdtemp(prefix="script_mistakes_"))
    counts = dict.fromkeys(options.ways, 0)
    for name, way, rows, is_right in searched(chosen, options.ways, folder):
        first = rows[0] if rows else {}
        counts[way] += is_right and not name.startswith("honest ")
        print(f"{'named' if is_right else 'MISSED'} | {name} | {way} | {len(rows)}", *(
            first.get(column, "") for column in ("API Name", "Direction", "Verdict", "Source", "Message")
        ), sep=" | ", flush=True)  # fmt: skip
    for way, count in counts.items():
        print(f"{way}: {count} of {len(chosen)}")
    if options.captures is None:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
