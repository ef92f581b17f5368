"""Which calls and modules of a step are recorded.

Comes in: the `scope`, `list` and `risk_level` of a configuration. Goes out: yes or no for each key. Called
once for each call. The rules are msprobe's: a scope is two names, and what runs from the first to the
second is recorded; a list has parts of names, and `name-regex(...)` for patterns; a module in a list means
all that runs in it; with both, what is listed within the scope. Without them the risk level decides: which
operators it takes are facts of msprobe 26.2 (`api_risk_level.py` and `support_wrap_ops.yaml`); msprobe takes
`linear` and `chain_matmul` for one name, by a missing comma, and here they are two.
"""

import difflib
import re
from collections.abc import Sequence
from functools import cache

from ray_precheck.capture.settings import ALL_RISKS, CORE
from ray_precheck.errors import UsageError

_PATTERN = re.compile(r"name-regex\((.*)\)", re.DOTALL)
_NUMBER = re.compile(r"\.\d+(?=\.|$)")
_NEAREST = 3


class Scope:
    """Says of each key in turn whether it is recorded.

    Raises:
        UsageError: a scope is not two names, or a pattern is no regular expression.
    """

    def __init__(
        self, scope: Sequence[str], chosen: Sequence[str], risk_level: str = ALL_RISKS
    ) -> None:
        if scope and len(scope) != 2:
            raise UsageError(
                f"scope has {len(scope)} names; expected two, where recording begins and ends"
            )
        self._scope = tuple(scope)
        self._risk_level = risk_level
        self._patterns: list[re.Pattern[str]] = []
        self._parts: dict[str, str] = {}
        self._inside = False
        self._open: list[str] = []
        self.found: set[str] = set()
        self._names: set[str] = set()
        for entry in chosen:
            self._add(entry.strip())
        self._selects = bool(scope or chosen)
        self._everything = not self._selects and risk_level == ALL_RISKS

    def _add(self, entry: str) -> None:
        match = _PATTERN.fullmatch(entry)
        if match is None:
            self._parts[entry.lower()] = entry
            return
        try:
            self._patterns.append(re.compile(match[1]))
        except re.error as error:
            raise UsageError(f"{entry} in the list is no regular expression: {error}") from None

    def wants(self, key: str) -> bool:
        """Return whether a call is recorded; it is asked in the order of the calls."""
        if self._everything:
            return True
        if not self._selects:
            return _is_at(key.rsplit(".", 2)[0], self._risk_level)
        self._names.add(_NUMBER.sub("", key))
        if self._scope and not self._in_scope(key):
            return False
        if not self._parts and not self._patterns:
            return True
        return bool(self._open) or self._listed(key)

    def _in_scope(self, key: str) -> bool:
        begin, end = self._scope
        if begin in key:
            self._inside = True
            self.found.add(begin)
        wanted = self._inside
        if end in key:
            self._inside = False
            self.found.add(end)
        return wanted

    def _listed(self, key: str) -> bool:
        lower = key.lower()
        for part, entry in self._parts.items():
            if part in lower:
                self.found.add(entry)
                return True
        for pattern in self._patterns:
            if pattern.search(key):
                self.found.add(pattern.pattern)
                return True
        return False

    def enter(self, key: str) -> bool:
        """Return whether a module is recorded, whose calls are recorded with it."""
        wanted = self.wants(key)
        if wanted and (self._parts or self._patterns):
            self._open.append(key)
        return wanted

    def leave(self, key: str) -> None:
        """Take note that a module has ended."""
        if self._open and self._open[-1] == key:
            self._open.pop()

    def missing(self) -> dict[str, list[str]]:
        """Return the entries that met nothing so far, each with the nearest names of calls."""
        entries = [*self._scope, *self._parts.values(), *(p.pattern for p in self._patterns)]
        return {entry: self._nearest(entry) for entry in entries if entry not in self.found}

    def _nearest(self, entry: str) -> list[str]:
        """Return names of calls that look like an entry: the whole name, or one of its parts."""
        whole = {name.lower(): name for name in sorted(self._names)}
        parts = {part: name for name, full in whole.items() for part in name.split(".")}
        wanted = _NUMBER.sub("", entry).lower()
        close = difflib.get_close_matches(wanted, [*whole, *parts], _NEAREST, 0.6)
        full = [whole[name] if name in whole else whole[parts[name]] for name in close]
        return list(dict.fromkeys(full))


# Products, norms, embeddings, attention and fused updates. What else is core stands in `_CORE_PREFIXES`.
CORE_NAMES = frozenset(
    "_fused_adamw_ _fused_adam_ matmul __matmul__ bmm addmm addmm_ addbmm addbmm_ baddbmm baddbmm_ mm mv"
    " addmv addmv_ addr addr_ conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d"
    " conv_tbc convolution _convolution chain_matmul linear bilinear linalg.matmul linalg.multi_dot"
    " linalg.vecdot batch_norm instance_norm layer_norm group_norm local_response_norm"
    " _batch_norm_impl_index batch_norm_elemt batch_norm_stats batch_norm_update_stats"
    " batch_norm_gather_stats batch_norm_gather_stats_with_counts batch_norm_backward_elemt"
    " batch_norm_backward_reduce embedding embedding_bag multi_head_attention_forward"
    " scaled_dot_product_attention".split()
)
# Collectives, and what torch_npu and MindSpeed bring.
_CORE_PREFIXES = frozenset({"Distributed", "NPU", "MindSpeed", "NpuDistributed"})
# Views, copies, conversions and fills.
LOW_NAMES = frozenset(
    "squeeze unsqueeze reshape reshape_as view view_as flatten unflatten expand expand_as repeat"
    " repeat_interleave tile transpose permute moveaxis movedim swapaxes swapdims chunk unsafe_chunk split"
    " split_with_sizes unsafe_split unsafe_split_with_sizes tensor_split hsplit vsplit dsplit unbind stack"
    " cat concat concatenate hstack vstack dstack column_stack row_stack align_as align_to atleast_1d"
    " atleast_2d atleast_3d ravel clamp unfold type_as to float double int long half bfloat16 byte char"
    " bool cfloat numpy empty empty_like zeros zeros_like ones ones_like full full_like arange linspace"
    " logspace eye identity diag diagflat diag_embed triu tril triu_indices tril_indices clone __bool__"
    " stride".split()
)
_OF_MODULES = frozenset({"Module", "Cell", "Optimizer"})


@cache
def _is_at(full_name: str, level: str) -> bool:
    """Return whether calls of a name are recorded at a level: FOCUS (all but `LOW_NAMES`) or CORE.

    Modules and optimizers are recorded at every level.
    """
    prefix, _, name = full_name.partition(".")
    if prefix in _OF_MODULES:
        return True
    is_core = name in CORE_NAMES or prefix in _CORE_PREFIXES
    return is_core if level == CORE else is_core or name not in LOW_NAMES
