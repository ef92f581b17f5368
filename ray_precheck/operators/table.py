"""A table of facts about operators: one row claims one fact for the operators of a text.

Comes in: rows, each with the text of its operators and the fact. Goes out: a `FactTable`, in which a fact
is found by full name or by the name in a dump. The other modules of this folder are such tables; so are
the roles (`inputs.roles.table`) and the random distributions (`check.random.rules`).

A text has groups of namespaces and names. The names of a group are in each of its namespaces:

    torch torch.Tensor mindspore.mint: sort argsort
    mindspore.ops: top_k

are the six operators `torch.sort`, `torch.argsort`, ... and `mindspore.ops.top_k`. There is no way to
write a name without its namespace: a namesake in another framework may mean another thing.

In a dump an operator is called by a prefix, which means another namespace in each framework: `Functional` is
`torch.nn.functional` in a dump of PyTorch and `mindspore.ops` in one of MindSpore. Of a primitive of
MindSpore is known what is known of the function of `mindspore.ops` that computes the same (`FUNCTIONS`); most
of these have the same name in torch, too.

The one table here is of the names of arguments that dumps know by their places (`with_name`).
"""

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from ray_precheck.descriptors.descriptor import built_in_frameworks, find_framework, is_framework

# framework of the dump -> prefix of its keys -> namespace of the full names, torch's first
NAMESPACES = {
    each.name: each.namespaces
    for each in sorted(built_in_frameworks(), key=lambda each: not each.is_bench)
}
# Modules whose functions are those of another namespace.
_SAME = {"torch.functional": "torch"}
# Further names of functions of torch, beside the one that its documentation lists. Captures of ours had
# `Torch.spmm` for every `torch.mm`.
UNDOCUMENTED = {
    "torch.dsmm": "torch.mm",
    "torch.spmm": "torch.mm",
    "torch.hsmm": "torch.hspmm",
    "torch.saddmm": "torch.sspaddmm",
}
Fact = TypeVar("Fact")


def _named(text: str) -> dict[str, str]:
    """Return the second part of words `Primitive=function` by the first."""
    return dict(word.split("=") for word in text.split())


# Functions of one tensor, of two operands, and activations, each by its name in torch.
OF_ONE = _named(
    """Abs=abs Acos=acos Acosh=acosh Asin=asin Asinh=asinh Atan=atan Atanh=atanh Ceil=ceil Cos=cos Cosh=cosh
    Erf=erf Erfc=erfc Exp=exp Expm1=expm1 Floor=floor IsFinite=isfinite IsInf=isinf IsNan=isnan Log=log
    Log1p=log1p LogicalNot=logical_not Neg=neg OnesLike=ones_like Reciprocal=reciprocal Inv=reciprocal
    Rint=round Rsqrt=rsqrt Sigmoid=sigmoid Sign=sign Sin=sin Sinh=sinh Sqrt=sqrt Square=square Tan=tan
    Tanh=tanh Trunc=trunc ZerosLike=zeros_like"""
)
OF_TWO = _named(
    """Add=add Atan2=atan2 Div=div Equal=eq FloorDiv=floor_divide FloorMod=remainder Greater=gt
    GreaterEqual=ge Less=lt LessEqual=le LogicalAnd=logical_and LogicalOr=logical_or Maximum=maximum
    Minimum=minimum Mul=mul NotEqual=ne Pow=pow RealDiv=div Sub=sub Xlogy=xlogy"""
)
ACTIVATIONS = _named(
    """HSigmoid=hardsigmoid HSwish=hardswish LogSigmoid=logsigmoid Mish=mish ReLU=relu ReLU6=relu6 SeLU=selu
    SiLU=silu Softplus=softplus Softsign=softsign"""
)
# The arguments that both have stand at the same places.
_OTHERS = _named(
    """Argmax=argmax Argmin=argmin AvgPool=avg_pool2d BatchMatMul=bmm
    BCEWithLogitsLoss=binary_cross_entropy_with_logits BiasAdd=bias_add
    BinaryCrossEntropy=binary_cross_entropy BroadcastTo=broadcast_to Cast=cast Concat=concat
    concat_impl=concat Conv2D=conv2d Conv2DBackpropInput=conv_transpose2d
    Conv2DTranspose=conv_transpose2d Conv3D=conv3d CumSum=cumsum Dense=dense Elu=elu
    ExpandDims=expand_dims Flatten=flatten Gather=gather GatherD=gather_d GatherNd=gather_nd GeLU=gelu
    HShrink=hardshrink KLDivLoss=kl_div LayerNorm=layer_norm Lerp=lerp LogSoftmax=log_softmax
    MaskedFill=masked_fill MatMul=matmul MatMulExt=matmul MaxPool=max_pool2d NLLLoss=nll_loss
    OneHot=one_hot Pad=pad PReLU=prelu Range=range ReduceAll=all ReduceAny=any ReduceMax=amax
    ReduceMean=mean ReduceMin=amin ReduceProd=prod ReduceSum=sum Reshape=reshape ReverseV2=reverse
    ScatterNd=scatter_nd Select=select Slice=slice SmoothL1Loss=smooth_l1_loss Softmax=softmax
    softmax_impl=softmax SoftShrink=soft_shrink SparseSoftmaxCrossEntropyWithLogits=cross_entropy
    Split=split Squeeze=squeeze squeeze_impl=squeeze Stack=stack StridedSlice=strided_slice
    TensorScatterAdd=tensor_scatter_add TensorScatterUpdate=tensor_scatter_update Tile=tile TopK=top_k
    Transpose=transpose Tril=tril Triu=triu UnsortedSegmentSum=unsorted_segment_sum Unstack=unstack"""
)
FUNCTIONS = {**OF_ONE, **OF_TWO, **ACTIVATIONS, **_OTHERS}


@functools.lru_cache(1 << 14)
def full_name(type_name: str, framework: str) -> str:
    """Return the full name of the API that a dump of a framework calls `Prefix.api`.

    A prefix that the framework does not have stays: it is the prefix of a user's own operators. Of a
    function with several names it is the documented one.
    """
    prefix, _, api = type_name.partition(".")
    name = f"{_namespaces(framework).get(prefix, prefix)}.{api}"
    namespace, _, last = name.rpartition(".")
    name = f"{_SAME.get(namespace, namespace)}.{last}"
    return UNDOCUMENTED.get(name, name)


@functools.lru_cache(1 << 14)
def full_names(type_name: str, framework: str = "") -> tuple[str, ...]:
    """Return the full names that `Prefix.api` may mean: one if the framework is known, else one for each
    framework that has the prefix, torch's first; behind that of a primitive the function that computes the
    same."""
    prefix, _, api = type_name.partition(".")
    if prefix == "Primitive" and framework in ("", "mindspore"):
        same = (f"mindspore.ops.{FUNCTIONS[api]}",) if api in FUNCTIONS else ()
        return (full_name(type_name, "mindspore"), *same)
    if framework:
        return (full_name(type_name, framework),)
    return tuple(dict.fromkeys(full_name(type_name, each) for each in NAMESPACES))


def is_known_prefix(prefix: str, framework: str = "") -> bool:
    """Return whether the framework has a namespace for a prefix; any framework if none is given."""
    frameworks = [framework] if framework else list(NAMESPACES)
    return any(prefix in _namespaces(each) for each in frameworks)


def type_names(name: str) -> Iterator[tuple[str, str]]:
    """Yield the names that dumps may have for an operator, each after its framework:
    `("pytorch", "Functional.softmax")`."""
    for framework, prefixes in NAMESPACES.items():
        for prefix, namespace in prefixes.items():
            rest = name.removeprefix(f"{namespace}.")
            if rest != name:
                yield framework, f"{prefix}.{rest}"


def _namespaces(framework: str) -> Mapping[str, str]:
    """Return the namespaces of a framework by prefix; {} if no descriptor declares the framework."""
    return find_framework(framework).namespaces if is_framework(framework) else {}


def operators(text: str) -> tuple[str, ...]:
    """Return the full names that a text of namespaces and names stands for.

    Raises:
        ValueError: the text has a name twice, or a name before the first namespace.
    """
    found = tuple(_expanded(text))
    twice = sorted({name for name in found if found.count(name) > 1})
    if twice:
        raise ValueError(f"these operators stand in one row twice: {', '.join(twice)}")
    return found


def _expanded(text: str) -> Iterator[str]:
    """Yield the full names of a text. A line with a colon begins a group."""
    namespaces: list[str] = []
    for line in filter(str.strip, text.splitlines()):
        before, colon, after = line.rpartition(":")
        namespaces = before.split() if colon else namespaces
        if not namespaces:
            raise ValueError(f"no namespace stands before {line.strip()!r}; write torch: sort")
        for name in after.split():
            yield from (f"{namespace}.{name}" for namespace in namespaces)


class FactTable(Generic[Fact]):
    """One fact about each of many operators, by full name.

    Raises:
        ValueError: two rows claim the fact for the same operator; the message names it.
    """

    def __init__(self, title: str, rows: Iterable[tuple[str, Fact]]) -> None:
        self.title = title
        found: dict[str, Fact] = {}
        for text, fact in rows:
            for name in operators(text):
                if name in found:
                    raise ValueError(f"two rows of the table {title!r} claim {name}; keep one")
                found[name] = fact
        self.by_name: Mapping[str, Fact] = found
        self._asked: dict[tuple[str, str], Fact | None] = {}

    def get(self, name: str) -> Fact | None:
        """Return the fact about an operator by its full name, None if there is no row."""
        return self.by_name.get(name)

    def of(self, type_name: str, framework: str = "") -> Fact | None:
        """Return the fact about the operator that a dump calls `Prefix.api`, None if there is no row.

        If the framework is not given, the first framework with a row counts, torch's first.
        """
        asked = type_name, framework
        if asked not in self._asked:
            names = full_names(type_name, framework)
            self._asked[asked] = next(
                (self.by_name[name] for name in names if name in self.by_name), None
            )
        return self._asked[asked]


def table_of_names(title: str, text: str) -> FactTable[bool]:
    """Return the table of a property that operators have (True) or do not have (no row)."""
    return FactTable(title, [(text, True)])


def one_table(title: str, *tables: Mapping[str, Fact]) -> dict[str, Fact]:
    """Return several tables as one.

    Raises:
        ValueError: two tables have a row for the same name, of which one would be hidden.
    """
    found: dict[str, Fact] = {}
    for table in tables:
        twice = sorted(found.keys() & table.keys())
        if twice:
            raise ValueError(f"two rows of {title} claim {', '.join(twice)}; keep one")
        found |= table
    return found


def _orders(namespaces: str, text: str) -> list[tuple[str, str]]:
    """Return the rows of lines `names of functions = their arguments in order`."""
    pairs = (line.split(" = ") for line in text.strip().splitlines())
    return [(f"{namespaces}: {names.strip()}", arguments) for names, arguments in pairs]


# In the order of torch 2.13 and of MindSpore 2.10 (`mint`), which tests/frameworks/test_operators_claims.py
# holds against their signatures.
ARGUMENTS: FactTable[str] = FactTable(
    "names of arguments",
    [
        *_orders(
            "torch.nn.functional mindspore.mint.nn.functional",
            """batch_norm = input running_mean running_var weight bias training momentum eps
            layer_norm = input normalized_shape weight bias eps
            group_norm = input num_groups weight bias eps
            linear = input weight bias
            avg_pool2d = input kernel_size stride padding ceil_mode count_include_pad divisor_override
            grid_sample = input grid mode padding_mode align_corners
            pad = input pad mode value""",
        ),
        *_orders(
            "torch.nn.functional",
            """instance_norm = input running_mean running_var weight bias use_input_stats momentum eps
            rms_norm = input normalized_shape weight eps
            local_response_norm = input size alpha beta k
            bilinear = input1 input2 weight bias
            conv1d conv2d conv3d = input weight bias stride padding dilation groups
            conv_transpose1d = input weight bias stride padding output_padding groups dilation
            conv_transpose2d = input weight bias stride padding output_padding groups dilation
            conv_transpose3d = input weight bias stride padding output_padding groups dilation
            embedding = input weight padding_idx max_norm norm_type scale_grad_by_freq sparse
            dropout dropout1d dropout2d dropout3d alpha_dropout = input p training inplace
            celu elu = input alpha inplace
            leaky_relu = input negative_slope inplace
            hardtanh = input min_val max_val inplace
            softplus = input beta threshold
            threshold = input threshold value inplace
            avg_pool1d = input kernel_size stride padding ceil_mode count_include_pad
            avg_pool3d = input kernel_size stride padding ceil_mode count_include_pad divisor_override
            max_pool1d max_pool2d = input kernel_size stride padding dilation ceil_mode return_indices
            interpolate = input size scale_factor mode align_corners recompute_scale_factor antialias
            fold = input output_size kernel_size dilation padding stride
            unfold = input kernel_size dilation padding stride
            normalize = input p dim eps out
            cosine_similarity = x1 x2 dim eps
            gumbel_softmax = logits tau hard eps dim
            scaled_dot_product_attention = query key value attn_mask dropout_p
            cross_entropy = input target weight size_average ignore_index reduce reduction label_smoothing
            nll_loss = input target weight size_average ignore_index reduce reduction
            binary_cross_entropy = input target weight size_average reduce reduction
            binary_cross_entropy_with_logits = input target weight size_average reduce reduction pos_weight
            kl_div = input target size_average reduce reduction log_target
            l1_loss mse_loss = input target size_average reduce reduction weight
            smooth_l1_loss = input target size_average reduce reduction beta
            huber_loss = input target reduction delta weight
            ctc_loss = log_probs targets input_lengths target_lengths blank reduction zero_infinity""",
        ),
        *_orders(
            "mindspore.mint.nn.functional",
            "conv2d = input weight bias stride padding dilation groups",
        ),
    ],
)


def with_name(key: str, path: str) -> str:
    """Return the path of an input of a forward record, `input.6`, with the argument's name: `input.6
    (momentum)`; as it is where that is not known."""
    call, _, direction = key.rpartition(".")
    part, _, place = path.partition(".")
    names = (
        ARGUMENTS.of(call.rpartition(".")[0])
        if direction == "forward" and part == "input"
        else None
    )
    number = place.partition(".")[0]
    if names is None or not number.isdigit() or int(number) >= len(names.split()):
        return path
    return f"{path} ({names.split()[int(number)]})"
