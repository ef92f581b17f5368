"""Is the bench right? Calls with odd arguments, held against references that are not torch.

The bench of each call of `CASES` (`ray_precheck.bench`, in float64) is held against NumPy, SciPy, mpmath, or a
few plain loops that say what the documentation says; a disagreement is a fault of the bench until shown
otherwise. Used by `test_references`.

A call agrees if its largest error is at most 1e-10 of the largest magnitude of the reference (each reference
is good to 1e-12 or better there), shapes are the same, and NaN and infinity are at the same places.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy
from scipy import special

from ray_precheck.bench.run import Bench
from ray_precheck.check.inputs import as_in_dtype
from ray_precheck.foreign import caught
from ray_precheck.frameworks.base import CallPlan
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.values import HostCall, HostTensor

LARGEST = 1e-10
_RNG = np.random.default_rng(20)


@dataclass(frozen=True)
class HeldCall:
    """A call, and the function that computes it in another way; `loose` is the error that is allowed instead
    of `LARGEST`, where the function is ill-conditioned."""

    api: str
    reference: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    loose: float = LARGEST

    @property
    def title(self) -> str:
        """The call in words."""
        return f"{self.api}({', '.join([*map(_shown, self.args), *(f'{k}={_shown(v)}' for k, v in self.kwargs.items())])})"


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_shown, value))}]"
    return repr(value)


def disagreement(case: HeldCall, bench: Bench) -> str:
    """Return in what a bench and its reference differ, "" for nothing."""
    prefix, _, api = case.api.partition(".")
    call = HostCall(tuple(map(_host, case.args)), {k: _host(v) for k, v in case.kwargs.items()})
    name = ApiName(prefix, api, 0)
    call = as_in_dtype(name.type_name, "pytorch", call)
    found = bench.forward(bench.resolve(name), call, CallPlan(in_place=api.endswith("_"))).outputs
    wanted = case.reference(*case.args, **case.kwargs)
    many = wanted if isinstance(wanted, tuple | list) else [wanted]
    got = [each.data if isinstance(each, HostTensor) else np.asarray(each) for each in found]
    if len(got) < len(many):
        return f"{len(got)} outputs where the reference has {len(many)}"
    said = (_difference(g, np.asarray(w), case.loose) for g, w in zip(got, many, strict=False))
    return next(filter(None, said), "")


def _difference(got: Any, wanted: Any, loose: float) -> str:
    if got.shape != wanted.shape:
        return f"shape {got.shape} where the reference has {wanted.shape}"
    if not wanted.size:
        return ""
    got, wanted = got.astype(np.complex128), wanted.astype(np.complex128)
    odd = ~np.isfinite(wanted)
    if (
        not np.array_equal(got[odd], wanted[odd], equal_nan=True)
        or not np.isfinite(got[~odd]).all()
    ):
        return f"NaN or infinities: {got.ravel()[:4]} where the reference has {wanted.ravel()[:4]}"
    if odd.all():
        return ""
    error = np.abs(got[~odd] - wanted[~odd])
    scale = max(float(np.abs(wanted[~odd]).max()), 1e-300)
    worst = int(error.argmax())
    if error[worst] <= loose * scale:
        return ""
    return f"{got[~odd][worst]} where the reference has {wanted[~odd][worst]}"


def _host(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return HostTensor(str(value.dtype), value.copy())
    if isinstance(value, list):
        return [_host(each) for each in value]
    return value


# fmt: off
# ruff: noqa: E501
CASES: list[HeldCall] = []


def add(api: str, reference: Callable[..., Any], *args: Any, loose: float = LARGEST, **kwargs: Any) -> None:
    """Add a call; without a prefix it is one of `torch`."""
    CASES.append(HeldCall(api if "." in api and api[0].isupper() else f"Torch.{api}", reference, args, kwargs, loose))


def normal(*shape: int) -> Any:
    """Return standard normal numbers."""
    return _RNG.standard_normal(shape)


def uniform(low: float, high: float, *shape: int) -> Any:
    """Return uniform numbers."""
    return _RNG.uniform(low, high, shape)


def integers(low: int, high: int, *shape: int) -> Any:
    """Return integers below `high`."""
    return _RNG.integers(low, high, shape)


def unary(names: dict[str, Callable[..., Any]], values: Any) -> None:
    """Add functions of one tensor."""
    for name, reference in names.items():
        add(name, reference, values)


def namesakes(module: Any, names: str, prefix: str = "") -> dict[str, Callable[..., Any]]:
    """Return functions that have the names of torch's."""
    return {prefix + name: getattr(module, name) for name in names.split()}


# Of one number.
X, POSITIVE, UNIT = normal(4, 7) * 2, uniform(0.05, 6, 4, 7), uniform(-0.99, 0.99, 4, 7)
unary(namesakes(np, "abs ceil cos cosh deg2rad exp exp2 expm1 floor rad2deg round sign sin sinc sinh square tan tanh trunc signbit isnan positive"), X)
unary(namesakes(special, "erf erfc i0"), X)
unary(namesakes(special, "i0e i1 i1e log_ndtr ndtr erfcx expit", "special."), X)
unary(
    {
        "asinh": np.arcsinh, "atan": np.arctan, "neg": np.negative, "sigmoid": special.expit, "special.sinc": np.sinc,
        "frac": lambda x: x - np.trunc(x), "reciprocal": lambda x: 1 / x, "special.airy_ai": lambda x: special.airy(x)[0],
        "special.bessel_j0": special.j0, "special.bessel_j1": special.j1, "special.spherical_bessel_j0": lambda x: np.sin(x) / x,
    },
    X,
)
unary(namesakes(np, "log log10 log1p log2 sqrt"), POSITIVE)
unary(namesakes(special, "entr gammaln psi", "special."), POSITIVE)
unary(
    {
        "rsqrt": lambda x: 1 / np.sqrt(x), "lgamma": special.gammaln, "digamma": special.digamma,
        "special.bessel_y0": special.y0, "special.bessel_y1": special.y1,
        "special.modified_bessel_k0": special.k0, "special.modified_bessel_k1": special.k1,
        "special.scaled_modified_bessel_k0": special.k0e, "special.scaled_modified_bessel_k1": special.k1e,
    },
    POSITIVE,
)
unary({"asin": np.arcsin, "acos": np.arccos, "atanh": np.arctanh, "erfinv": special.erfinv}, UNIT)
unary({"acosh": np.arccosh}, POSITIVE + 1)
unary({"logit": special.logit, "special.ndtri": special.ndtri}, uniform(0.01, 0.99, 5, 3))
add("logit", lambda x, eps: special.logit(np.clip(x, eps, 1 - eps)), uniform(-0.2, 1.2, 9), eps=0.1)
add("round", lambda x, decimals: np.round(x, decimals), X * 100, decimals=-1)
add("round", lambda x, decimals: np.round(x, decimals), X, decimals=2)
ODD = np.array([np.nan, np.inf, -np.inf, 1.5, -0.0])
add("nan_to_num", lambda x, nan, posinf, neginf: np.nan_to_num(x, nan=nan, posinf=posinf, neginf=neginf), ODD, nan=3.0, posinf=7.0, neginf=-8.0)
add("clamp", lambda x, min: np.maximum(x, min), X, min=-0.3)
add("clamp", lambda x, min, max: np.minimum(np.maximum(x, min), max), X, min=0.5, max=-0.5)
COMPLEX = X + 1j * normal(4, 7)
unary(namesakes(np, "abs angle conj exp sqrt log real imag tanh sin"), COMPLEX)
unary({"sgn": lambda z: z / np.abs(z), "reciprocal": lambda z: 1 / z, "acos": np.arccos, "asinh": np.arcsinh}, COMPLEX)
for n in (0, 1, 3):
    # Of n = 1 torch's float64 is good to 1e-10, which float32 cannot tell.
    add("polygamma", lambda n, x: special.polygamma(n, x), n, POSITIVE, loose=1e-9)
add("mvlgamma", lambda x, p: np.vectorize(special.multigammaln)(x, p), POSITIVE + 2, p=3)
add("special.zeta", special.zeta, POSITIVE + 1.1, POSITIVE)
add("special.gammainc", special.gammainc, POSITIVE, POSITIVE[::-1].copy())
add("special.gammaincc", special.gammaincc, POSITIVE, POSITIVE[::-1].copy())
add("special.xlogy", special.xlogy, np.array([0.0, 1.0, 2.0, 0.0]), np.array([0.0, 3.0, 0.5, np.nan]))
add("special.xlog1py", special.xlog1py, np.array([0.0, 1.0, 2.0]), np.array([-1.0, 3.0, 0.5]))
POLYNOMIALS = {"chebyshev_polynomial_t": "chebyt", "chebyshev_polynomial_u": "chebyu", "hermite_polynomial_h": "hermite", "hermite_polynomial_he": "hermitenorm", "laguerre_polynomial_l": "laguerre", "legendre_polynomial_p": "legendre"}
for name, theirs in POLYNOMIALS.items():
    add(f"special.{name}", lambda x, n, theirs=theirs: getattr(special, f"eval_{theirs}")(n, x), UNIT, np.full((4, 7), 5))

# Activations.
F = "Functional."
add(F + "elu", lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(x)), X, alpha=1.7)
add(F + "celu", lambda x, alpha: np.maximum(x, 0) + np.minimum(0, alpha * np.expm1(x / alpha)), X, alpha=0.6)
add(F + "selu", lambda x: 1.0507009873554804934193349852946 * np.where(x > 0, x, 1.6732632423543772848170429916717 * np.expm1(x)), X)
add(F + "gelu", lambda x: x * special.ndtr(x), X)
add(F + "gelu", lambda x, approximate: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))), X, approximate="tanh")
add(F + "silu", lambda x: x * special.expit(x), X)
add(F + "mish", lambda x: x * np.tanh(np.logaddexp(0, x)), X)
add(F + "softplus", lambda x, beta, threshold: np.where(x * beta > threshold, x, np.log1p(np.exp(x * beta)) / beta), X * 5, beta=2, threshold=6)
add(F + "softsign", lambda x: x / (1 + np.abs(x)), X)
add(F + "relu6", lambda x: np.clip(x, 0, 6), X * 4)
add(F + "hardtanh", lambda x, min_val, max_val: np.clip(x, min_val, max_val), X, min_val=-2.0, max_val=0.5)
add(F + "hardsigmoid", lambda x: np.clip(x / 6 + 0.5, 0, 1), X * 3)
add(F + "hardswish", lambda x: x * np.clip(x + 3, 0, 6) / 6, X * 3)
add(F + "leaky_relu", lambda x, negative_slope: np.where(x > 0, x, negative_slope * x), X, negative_slope=0.3)
add(F + "logsigmoid", lambda x: -np.logaddexp(0, -x), X)
add(F + "tanhshrink", lambda x: x - np.tanh(x), X)
add(F + "softshrink", lambda x, lambd: np.sign(x) * np.maximum(np.abs(x) - lambd, 0), X, lambd=0.8)
add(F + "hardshrink", lambda x, lambd: np.where(np.abs(x) > lambd, x, 0), X, lambd=0.8)
add(F + "threshold", lambda x, t, v: np.where(x > t, x, v), X, 0.2, -3.0)
add(F + "prelu", lambda x, w: np.where(x > 0, x, w[None, :, None] * x), normal(2, 3, 4), normal(3))
add(F + "glu", lambda x, dim: x[:2] * special.expit(x[2:]), normal(4, 3), dim=0)
add(F + "glu", lambda x, dim: x[:, :2] * special.expit(x[:, 2:]), normal(4, 4), dim=-1)
for dim in (0, 1, -1):
    add(F + "softmax", lambda x, dim: special.softmax(x, dim), normal(3, 4, 5), dim=dim)
    add(F + "log_softmax", lambda x, dim: special.log_softmax(x, dim), normal(3, 4, 5), dim=dim)
add(F + "softmin", lambda x, dim: special.softmax(-x, dim), X, dim=1)
add(F + "softmax", lambda x, dim: special.softmax(x, dim), np.where(normal(3, 5) > 0.8, -np.inf, 1.0), dim=1)
for p, dim in ((2.0, 1), (1.0, 0), (3.0, -1)):
    add(F + "normalize", lambda x, p, dim: x / np.maximum((np.abs(x) ** p).sum(dim, keepdims=True) ** (1 / p), 1e-12), X, p=p, dim=dim)

# Of two numbers.
A, B = normal(3, 1, 5), normal(4, 1)
BINARY = namesakes(np, "add hypot logaddexp logaddexp2 maximum minimum fmax fmin copysign fmod floor_divide true_divide nextafter logical_and logical_or logical_xor isclose")
BINARY |= {"sub": np.subtract, "mul": np.multiply, "div": np.divide, "atan2": np.arctan2, "remainder": np.mod}
BINARY |= {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
for name, reference in BINARY.items():
    add(name, reference, A, B)
add("add", lambda a, b, alpha: a + alpha * b, A, B, alpha=-1.5)
add("sub", lambda a, b, alpha: a - alpha * b, A, B, alpha=2.5)
add("rsub", lambda a, b, alpha: b - alpha * a, A, B, alpha=0.5)
add("div", lambda a, b, rounding_mode: np.trunc(a / b), A, B, rounding_mode="trunc")
add("div", lambda a, b, rounding_mode: np.floor(a / b), A, B, rounding_mode="floor")
add("pow", np.power, POSITIVE, X)
add("pow", np.power, X, 3)
add("pow", lambda a, b: np.power(float(a), b), 2.5, X)
add("float_power", np.power, integers(1, 5, 6), 2.5)
add("heaviside", np.heaviside, np.array([-1.0, 0.0, 2.0, 0.0]), np.array([0.5, 0.7, 0.1, 2.0]))
add("ldexp", lambda a, b: a * 2.0**b, X, integers(-3, 4, 4, 7))
add("lerp", lambda a, b, w: a + w * (b - a), A, B, 0.3)
add("lerp", lambda a, b, w: a + w * (b - a), A, B, normal(3, 4, 5))
add("addcmul", lambda x, a, b, value: x + value * a * b, normal(4, 5), A[0], B, value=0.7)
add("addcdiv", lambda x, a, b, value: x + value * a / b, normal(4, 5), A[0], B, value=-0.7)
LEFT, RIGHT = integers(-20, 20, 5, 4), integers(1, 9, 4)
for name, reference in {**namesakes(np, "gcd lcm bitwise_and bitwise_or bitwise_xor fmod floor_divide"), "remainder": np.mod}.items():
    add(name, reference, LEFT, RIGHT)
add("bitwise_left_shift", np.left_shift, RIGHT, np.array([1, 2, 0, 3]))
add("bitwise_right_shift", np.right_shift, LEFT, np.array([1, 2, 0, 3]))
add("bitwise_not", np.bitwise_not, LEFT)

# Sums, means and orders along dimensions.
Y = normal(3, 4, 5)
for dim, keepdim in ((0, False), (-1, True), ((0, 2), False), (None, False)):
    along: dict[str, Any] = {} if dim is None else {"dim": dim, "keepdim": keepdim}
    for name, reference in {"sum": np.sum, "mean": np.mean, "nansum": np.nansum, "nanmean": np.nanmean}.items():
        given = np.where(Y > 1, np.nan, Y) if name.startswith("nan") else Y
        add(name, lambda x, dim=None, keepdim=False, f=reference: f(x, axis=dim, keepdims=keepdim), given, **along)
for correction, dim, keepdim in itertools.product((0, 1, 2), (1, (0, 2)), (False, True)):
    for name, reference in {"var": np.var, "std": np.std}.items():
        add(name, lambda x, dim, correction, keepdim, f=reference: f(x, axis=dim, ddof=correction, keepdims=keepdim), Y, dim=dim, correction=correction, keepdim=keepdim)
add("var_mean", lambda x, dim, correction: (np.var(x, axis=dim, ddof=correction), np.mean(x, axis=dim)), Y, dim=1, correction=0)
add("std_mean", lambda x, dim: (np.std(x, axis=dim, ddof=1), np.mean(x, axis=dim)), Y, dim=0)
add("logsumexp", lambda x, dim: special.logsumexp(x, dim), Y * 300, (0, 1))
add("prod", lambda x, dim: np.prod(x, dim), Y, 1)
add("amax", lambda x, dim: np.max(x, dim), Y, (0, -1))
add("amin", lambda x, dim, keepdim: np.min(x, dim, keepdims=keepdim), Y, 1, keepdim=True)
add("aminmax", lambda x, dim: (np.min(x, dim), np.max(x, dim)), Y, dim=2)
add("argmax", lambda x, dim: np.argmax(x, dim), Y, 1)
add("argmin", lambda x: np.argmin(x), Y)
add("median", lambda x, dim: (np.sort(x, dim)[:, 1], np.argsort(x, dim)[:, 1]), Y, 1)
add("median", lambda x: np.sort(x.ravel())[(x.size - 1) // 2], Y)
add("nanmedian", lambda x: np.sort(x[~np.isnan(x)])[(np.count_nonzero(~np.isnan(x)) - 1) // 2], np.where(Y > 1, np.nan, Y))
for how in ("linear", "lower", "higher", "midpoint", "nearest"):
    add("quantile", lambda x, q, dim, interpolation: np.quantile(x, q, axis=dim, method=interpolation), Y, 0.37, dim=1, interpolation=how)
add("quantile", lambda x, q, dim, keepdim: np.quantile(x, q, axis=dim, keepdims=keepdim), Y, np.array([0.1, 0.9]), dim=0, keepdim=True)
add("nanquantile", lambda x, q, dim: np.nanquantile(x, q, axis=dim), np.where(Y > 1, np.nan, Y), 0.6, dim=1)
add("kthvalue", lambda x, k, dim: (np.sort(x, dim)[:, k - 1], np.argsort(x, dim)[:, k - 1]), Y, 2, 1)
add("topk", lambda x, k, dim: (-np.sort(-x, dim)[..., :k], np.argsort(-x, dim)[..., :k]), Y, 3, -1)
add("topk", lambda x, k, dim, largest: (np.sort(x, dim)[:2], np.argsort(x, dim)[:2]), Y, 2, 0, largest=False)
add("sort", lambda x, dim, descending: (-np.sort(-x, dim), np.argsort(-x, dim)), Y, dim=1, descending=True)
add("msort", lambda x: np.sort(x, 0), Y)
add("cumsum", np.cumsum, Y, -2)
add("cumprod", np.cumprod, Y, 0)
add("logcumsumexp", lambda x, dim: np.logaddexp.accumulate(x, dim), Y, 1)
add("cummax", lambda x, dim: np.maximum.accumulate(x, dim), Y, 2)
add("cummin", lambda x, dim: np.minimum.accumulate(x, dim), Y, 0)
add("diff", lambda x, n, dim: np.diff(x, n, dim), Y, n=2, dim=0)
add("trapezoid", lambda y, x: np.trapz(y, x), Y, np.sort(normal(5)))
add("cumulative_trapezoid", lambda y, dx: scipy.integrate.cumulative_trapezoid(y, dx=dx), Y, dx=0.3)
add("count_nonzero", lambda x, dim: np.count_nonzero(x, dim), np.where(Y > 0, Y, 0), 1)
add("all", lambda x, dim: np.all(x, dim), Y > -0.8, 0)
add("any", lambda x, dim, keepdim: np.any(x, dim, keepdims=keepdim), Y > 1, 2, keepdim=True)
add("histc", lambda x, bins, min, max: np.histogram(x, bins, (min, max))[0], Y, bins=6, min=-2.0, max=2.0)
add("bincount", lambda x, weights, minlength: np.bincount(x, weights, minlength), integers(0, 6, 20), weights=normal(20), minlength=9)
add("cov", lambda x, correction: np.cov(x, ddof=correction), normal(3, 8), correction=0)
add("cov", lambda x, fweights, aweights: np.cov(x, fweights=fweights, aweights=aweights), normal(3, 8), fweights=integers(1, 4, 8), aweights=uniform(0.1, 1, 8))
add("corrcoef", np.corrcoef, normal(3, 8))
for order in (0.5, 1, 2, 3, np.inf, -np.inf, 0):
    add("linalg.vector_norm", lambda x, ord, dim: np.apply_along_axis(lambda v: np.linalg.norm(v, ord), dim, x), Y, float(order), dim=1)
    add("norm", lambda x, p, dim: np.apply_along_axis(lambda v: np.linalg.norm(v, p), dim, x), Y, p=float(order), dim=2)
for order in ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf):
    add("linalg.matrix_norm", lambda x, ord: np.stack([np.linalg.norm(m, ord) for m in x]), Y, order)
add("renorm", lambda x, p, dim, maxnorm: np.stack([r * min(1.0, maxnorm / (np.linalg.norm(r) + 1e-7)) for r in x]), normal(4, 6) * 3, 2, 0, 1.5)
add("dist", lambda a, b, p: np.linalg.norm((a - b).ravel(), p), normal(4, 5), normal(4, 5), 3)

# Products.
M, N, V = normal(2, 3, 4), normal(4, 5), normal(4)
for left, right in ((V, V), (V, N), (M, V), (M, N), (normal(2, 1, 3, 4), normal(5, 4, 2)), (normal(3, 0), normal(0, 2))):
    add("matmul", np.matmul, left, right)
add("bmm", np.matmul, M, normal(2, 4, 3))
add("addmm", lambda x, a, b, beta, alpha: beta * x + alpha * a @ b, normal(5), M[0], N, beta=0.3, alpha=-2.0)
add("baddbmm", lambda x, a, b, beta, alpha: beta * x + alpha * a @ b, normal(2, 3, 5), M, normal(2, 4, 5), beta=2, alpha=3)
add("addbmm", lambda x, a, b, beta: beta * x + (a @ b).sum(0), normal(3, 5), M, normal(2, 4, 5), beta=0.5)
add("addmv", lambda x, a, v, alpha: x + alpha * a @ v, normal(3), M[0], V, alpha=1.5)
add("addr", lambda x, a, b, beta, alpha: beta * x + alpha * np.outer(a, b), normal(4, 3), V, normal(3), beta=0.1, alpha=2.0)
add("vdot", np.vdot, V + 1j * normal(4), normal(4) + 1j * V)
add("inner", np.inner, M, normal(3, 4))
add("outer", np.outer, V, normal(3))
add("kron", np.kron, normal(2, 3), normal(3, 2))
add("tensordot", lambda a, b, dims: np.tensordot(a, b, dims), normal(2, 3, 4), normal(4, 3, 5), dims=[[1, 2], [1, 0]])
add("einsum", np.einsum, "bij,bjk->bik", M, normal(2, 4, 2))
add("einsum", np.einsum, "...ij,j->...i", normal(2, 2, 3, 4), V)
add("einsum", np.einsum, "ii->i", normal(4, 4))
add("linalg.multi_dot", lambda several: np.linalg.multi_dot(several), [normal(3, 4), normal(4, 5), normal(5, 2)])
add(F + "linear", lambda x, w, b: x @ w.T + b, normal(2, 3, 4), normal(5, 4), normal(5))
add(F + "bilinear", lambda a, b, w, c: np.einsum("ni,oij,nj->no", a, w, b) + c, normal(6, 3), normal(6, 4), normal(2, 3, 4), normal(2))
S = normal(4, 4) + 4 * np.eye(4)
P = S @ S.T
unary(namesakes(np.linalg, "det inv pinv cond", "linalg."), S)
unary(
    {
        "linalg.slogdet": lambda x: tuple(np.linalg.slogdet(x)), "logdet": lambda x: np.linalg.slogdet(x)[1], "trace": np.trace,
        "linalg.svdvals": lambda x: np.linalg.svd(x, compute_uv=False), "linalg.matrix_exp": scipy.linalg.expm,
    },
    S,
)
unary(namesakes(np.linalg, "cholesky eigvalsh matrix_rank", "linalg."), P)
add("linalg.solve", np.linalg.solve, S, normal(4, 3))
add("linalg.lstsq", lambda a, b: np.linalg.lstsq(a, b, rcond=None)[0], normal(6, 3), normal(6, 2))
for power in (-2, 0, 5):
    add("linalg.matrix_power", np.linalg.matrix_power, S, power)
add("linalg.solve_triangular", lambda a, b, upper: scipy.linalg.solve_triangular(a, b, lower=not upper), np.triu(S), normal(4, 2), upper=True)
add("linalg.cross", lambda a, b, dim: np.cross(a, b, axis=dim), normal(3, 5), normal(3, 5), dim=0)
add("linalg.vander", lambda x: np.vander(x, increasing=True), V)
add("vander", lambda x, **ways: np.vander(x, **ways), V, N=3, increasing=True)
for p in (0.0, 1.0, 2.0, 3.5, np.inf):
    add("cdist", lambda a, b, p: np.stack([[_minkowski(x - y, p) for y in b] for x in a]), normal(4, 3), normal(5, 3), p=p)
    add(F + "pdist", lambda a, p: np.array([_minkowski(x - y, p) for x, y in itertools.combinations(a, 2)]), normal(4, 3), p=p)
add(F + "pairwise_distance", lambda a, b, p, eps, keepdim: np.linalg.norm(a - b + eps, p, -1, keepdims=keepdim), normal(5, 3), normal(5, 3), p=1, eps=0.01, keepdim=True)
add(F + "cosine_similarity", lambda a, b, dim: (a * b).sum(dim) / np.linalg.norm(a, axis=dim) / np.linalg.norm(b, axis=dim), normal(5, 3), normal(5, 3), dim=0)


def _minkowski(difference: Any, p: float) -> float:
    return float(np.linalg.norm(difference, p)) if p else float(np.count_nonzero(difference))


# Elements that move.
add("roll", lambda x, shifts, dims: np.roll(x, shifts, dims), Y, (1, -2), (0, 2))
add("roll", np.roll, Y, 3)
add("flip", np.flip, Y, (0, -1))
add("rot90", lambda x, k, dims: np.rot90(x, k, dims), Y, 3, (0, 2))
add("tile", np.tile, normal(2, 3), (2, 1, 2))
add("repeat_interleave", lambda x, repeats, dim: np.repeat(x, repeats, dim), normal(3, 2), np.array([2, 0, 3]), dim=0)
add("cat", lambda many, dim: np.concatenate(many, dim), [normal(2, 3), normal(2, 0), normal(2, 1)], dim=-1)
add("stack", lambda many, dim: np.stack(many, dim), [normal(2, 3), normal(2, 3)], dim=-1)
INDEX = integers(0, 3, 3, 4, 5)
add("gather", lambda x, dim, i: np.take_along_axis(x, i, dim), Y, 0, INDEX)
add("take_along_dim", lambda x, i, dim: np.take_along_axis(x, i, dim), Y, INDEX, dim=1)
add("take", np.take, Y, np.array([0, -1, 7]))
add("index_select", lambda x, dim, i: np.take(x, i, dim), Y, 1, np.array([3, 3, 0]))


def _into(x: Any, dim: int, index: Any, source: Any, how: Callable[[float, float], float]) -> Any:
    """Return what writing into a tensor by an index of its shape makes of it, element by element."""
    found = x.copy()
    for place in np.ndindex(index.shape):
        at = (*place[:dim], int(index[place]), *place[dim + 1 :])
        found[at] = how(found[at], source[place])
    return found


add("scatter_add", lambda x, dim, i, s: _into(x, dim, i, s, lambda a, b: a + b), Y, 0, INDEX, normal(3, 4, 5))
for reduce, how in {"sum": lambda a, b: a + b, "prod": lambda a, b: a * b, "amax": max, "amin": min}.items():
    add("scatter_reduce", lambda x, dim, i, s, reduce, how=how: _into(x, dim, i, s, how), Y, 1, INDEX, normal(3, 4, 5), reduce=reduce)
add("scatter", lambda x, dim, i, v: _into(x, dim, i, np.full(i.shape, v), lambda a, b: b), Y, 2, INDEX, 2.5)
add("index_add", lambda x, dim, i, s, alpha: x + alpha * np.stack([s[:, i == k].sum(1) for k in range(x.shape[1])], 1), Y, 1, np.array([0, 2, 2]), normal(3, 3, 5), alpha=0.5)
add("index_fill", lambda x, dim, i, v: np.where(np.isin(np.arange(5), i), v, x), Y, 2, np.array([1, 4]), -1.0)
add("masked_fill", lambda x, m, v: np.where(m, v, x), Y, Y[:, :1] > 0, 9.0)
add("masked_select", lambda x, m: np.broadcast_to(x, Y.shape)[np.broadcast_to(m, Y.shape)], Y, Y[0] > 0)
add("where", np.where, Y > 0, Y, 3.0)
add("diagonal", lambda x, offset, dim1, dim2: np.diagonal(x, offset, dim1, dim2), Y, offset=-1, dim1=2, dim2=0)
add("diag", np.diag, V, -2)
add("tril", np.tril, Y, -1)
add("triu", np.triu, Y, 2)
add("movedim", np.moveaxis, Y, (0, 1), (2, 0))
add(
    "searchsorted",
    lambda s, v, right: np.stack([np.searchsorted(a, b, "right" if right else "left") for a, b in zip(s, v, strict=True)]),
    np.sort(np.round(normal(3, 6), 1)),
    np.round(normal(3, 4), 1),
    right=True,
)
add("bucketize", lambda v, s: np.searchsorted(s, v), np.round(normal(3, 4), 1), np.sort(np.round(normal(6), 1)))
add(F + "one_hot", lambda x, k: np.eye(k, dtype=np.int64)[x], integers(0, 4, 2, 3), 6)
add("unique_consecutive", lambda x: x[np.r_[True, x[1:] != x[:-1]]], np.array([1, 1, 2, 2, 1]))
add("combinations", lambda x, r: np.array(list(itertools.combinations(x, r))), V, r=3)
for mode, theirs in {"reflect": "reflect", "replicate": "edge", "circular": "wrap", "constant": "constant"}.items():
    add(F + "pad", lambda x, pad, mode, theirs=theirs: np.pad(x, ((0, 0), (0, 0), pad[2:], pad[:2]), theirs), normal(2, 3, 4, 5), (1, 2, 3, 0), mode=mode)
add(F + "pad", lambda x, pad, value: np.pad(x, ((0, 0), pad), constant_values=value), normal(2, 3), (0, 2), value=7.0)
add(F + "pad", lambda x, pad: x[:, 1:], normal(2, 4), (-1, 0))
add(F + "pixel_shuffle", lambda x, r: x.reshape(1, 2, r, r, 3, 4).transpose(0, 1, 4, 2, 5, 3).reshape(1, 2, 3 * r, 4 * r), normal(1, 8, 3, 4), 2)
add(F + "channel_shuffle", lambda x, g: x.reshape(1, g, 3, 2).transpose(0, 2, 1, 3).reshape(x.shape), normal(1, 6, 2), 2)


# Convolutions and windows, as sums over windows.
def windows(x: Any, size: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], fill: float = 0.0) -> Any:
    """Return the windows of a picture `(batch, channels, *sizes)` as `(batch, channels, *places, *size)`."""
    x = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)], constant_values=fill)
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, size, strict=True)]
    found = np.lib.stride_tricks.sliding_window_view(x, reach, tuple(range(2, x.ndim)))
    steps = tuple(slice(None, None, s) for s in stride)
    return found[(slice(None), slice(None), *steps, *(slice(None, None, d) for d in dilation))]


def conv(x: Any, w: Any, b: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> Any:
    """Return a convolution as sums of products over windows."""
    n = x.ndim - 2
    stride, padding, dilation = (each if isinstance(each, tuple) else (each,) * n for each in (stride, padding, dilation))
    seen = windows(x, w.shape[2:], stride, padding, dilation)
    parts = []
    for g, kernel in enumerate(np.split(w, groups)):
        part = seen[:, g * w.shape[1] : (g + 1) * w.shape[1]]
        inner = list(range(2 + n, 2 + 2 * n))
        parts.append(np.moveaxis(np.tensordot(part, kernel, ([1, *inner], list(range(1, 2 + n)))), -1, 1))
    found = np.concatenate(parts, 1)
    return found if b is None else found + b.reshape(-1, *(1,) * n)


def conv_transpose(x: Any, w: Any, b: Any = None, stride: int = 1, padding: int = 0, output_padding: int = 0, groups: int = 1, dilation: int = 1) -> Any:
    """Return a transposed convolution: each element adds its multiple of the kernel where it lands."""
    n, out = x.ndim - 2, w.shape[1]
    sizes = [(s - 1) * stride + dilation * (k - 1) + 1 + output_padding for s, k in zip(x.shape[2:], w.shape[2:], strict=True)]
    found = np.zeros((x.shape[0], out * groups, *sizes))
    share = x.shape[1] // groups
    for batch, c in np.ndindex(x.shape[:2]):
        for at in np.ndindex(x.shape[2:]):
            place = tuple(slice(a * stride, a * stride + dilation * (k - 1) + 1, dilation) for a, k in zip(at, w.shape[2:], strict=True))
            g = c // share
            found[(batch, slice(g * out, (g + 1) * out), *place)] += x[(batch, c, *at)] * w[c]
    found = found[(slice(None), slice(None), *(slice(padding, s - padding) for s in sizes))]
    return found if b is None else found + b.reshape(-1, *(1,) * n)


for stride, padding, dilation, groups in ((1, 0, 1, 1), (2, 1, 1, 2), (1, 2, 2, 4), (3, 1, 2, 1)):
    odd = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    add(F + "conv1d", conv, normal(2, 4, 11), normal(8, 4 // groups, 3), normal(8), **odd)
    add(F + "conv2d", conv, normal(2, 4, 9, 8), normal(8, 4 // groups, 3, 2), normal(8), **odd)
    add(F + "conv3d", conv, normal(1, 4, 7, 6, 5), normal(4, 4 // groups, 3, 2, 2), **odd)
    odd["output_padding"] = 1 if stride > 1 else 0
    add(F + "conv_transpose1d", conv_transpose, normal(2, 4, 6), normal(4, 3, 4), normal(3 * groups), **odd)
    add(F + "conv_transpose2d", conv_transpose, normal(2, 4, 4, 3), normal(4, 2, 4, 4), None, **odd)
add(F + "conv2d", conv, normal(1, 2, 7, 9), normal(3, 2, 3, 5), None, (2, 1), (0, 3), (1, 2))
add(F + "conv1d", lambda x, w, padding: conv(np.pad(x, ((0, 0), (0, 0), (1, 2))), w), normal(1, 2, 8), normal(3, 2, 4), padding="same")
add(
    F + "unfold",
    lambda x, k, dilation, padding, stride: windows(x, k, (stride,) * 2, (padding,) * 2, (dilation,) * 2).transpose(0, 1, 4, 5, 2, 3).reshape(2, 3 * 6, -1),
    normal(2, 3, 7, 8),
    (3, 2),
    dilation=2,
    padding=1,
    stride=2,
)


def pooled(x: Any, size: int, stride: int, padding: int, ceil_mode: bool, dilation: int = 1) -> tuple[list[int], list[list[list[int]]]]:
    """Return the shape of what pooling gives, and along each dimension the places that each window has; those
    outside of the picture are negative or beyond it."""
    shape, places = [], []
    for length in x.shape[2:]:
        room = length + 2 * padding - dilation * (size - 1) - 1
        count = (-(-room // stride) if ceil_mode else room // stride) + 1
        if ceil_mode and (count - 1) * stride >= length + padding:
            count -= 1
        shape.append(count)
        places.append([[o * stride - padding + dilation * k for k in range(size)] for o in range(count)])
    return shape, places


def avg_pool(x: Any, size: int, stride: int, padding: int = 0, ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None) -> Any:
    """Return means over windows; what lies beyond the padding (by `ceil_mode`) never counts."""
    shape, places = pooled(x, size, stride, padding, ceil_mode)
    found = np.zeros((*x.shape[:2], *shape))
    for at in np.ndindex(*shape):
        rows = [places[d][a] for d, a in enumerate(at)]
        inside = [[p for p in row if 0 <= p < n] for row, n in zip(rows, x.shape[2:], strict=True)]
        padded = [[p for p in row if p < n + padding] for row, n in zip(rows, x.shape[2:], strict=True)]
        count = divisor_override or math.prod(map(len, padded if count_include_pad else inside))
        found[(..., *at)] = x[(slice(None), slice(None), *np.ix_(*inside))].reshape(*x.shape[:2], -1).sum(-1) / count
    return found


def max_pool(x: Any, size: int, stride: int, padding: int = 0, dilation: int = 1, ceil_mode: bool = False) -> Any:
    """Return the largest of each window."""
    shape, places = pooled(x, size, stride, padding, ceil_mode, dilation)
    found = np.zeros((*x.shape[:2], *shape))
    for at in np.ndindex(*shape):
        inside = [[p for p in places[d][a] if 0 <= p < x.shape[2 + d]] for d, a in enumerate(at)]
        found[(..., *at)] = x[(slice(None), slice(None), *np.ix_(*inside))].reshape(*x.shape[:2], -1).max(-1)
    return found


for ceil_mode, include in itertools.product((False, True), (False, True)):
    for size, stride, padding in ((3, 2, 1), (2, 3, 0), (4, 3, 2)):
        ways = {"ceil_mode": ceil_mode, "count_include_pad": include}
        add(F + "avg_pool2d", avg_pool, normal(2, 3, 8, 7), size, stride, padding, **ways)
        add(F + "avg_pool1d", avg_pool, normal(2, 3, 9), size, stride, padding, **ways)
add(F + "avg_pool2d", avg_pool, normal(1, 2, 6, 6), 3, 2, 1, divisor_override=5)
for ceil_mode, dilation in itertools.product((False, True), (1, 2)):
    add(F + "max_pool2d", max_pool, normal(2, 3, 9, 8), 3, 2, 1, dilation, ceil_mode)
    add(F + "max_pool1d", max_pool, normal(2, 3, 11), 3, 2, 1, dilation, ceil_mode)
    add(F + "max_pool3d", max_pool, normal(1, 2, 7, 6, 7), 3, 2, 1, dilation, ceil_mode)


def adaptive(x: Any, sizes: Sequence[int], how: Callable[..., Any]) -> Any:
    """Return pooling to a fixed size: window i begins at floor(i n / size) and ends at ceil((i + 1) n / size)."""
    found = np.zeros((*x.shape[:2], *sizes))
    for at in np.ndindex(*sizes):
        place = tuple(slice(a * n // s, -(-(a + 1) * n // s)) for a, n, s in zip(at, x.shape[2:], sizes, strict=True))
        found[(..., *at)] = how(x[(slice(None), slice(None), *place)].reshape(*x.shape[:2], -1), -1)
    return found


for sizes in ((3, 2), (5, 7), (1, 1)):
    add(F + "adaptive_avg_pool2d", lambda x, s: adaptive(x, s, np.mean), normal(2, 3, 7, 5), sizes)
    add(F + "adaptive_max_pool2d", lambda x, s: adaptive(x, s, np.max), normal(2, 3, 7, 5), sizes)
add(F + "lp_pool2d", lambda x, p, size, stride: (windows(x, (size,) * 2, (stride,) * 2, (0, 0), (1, 1)) ** p).sum((-1, -2)) ** (1 / p), uniform(0.1, 2, 2, 3, 6, 6), 3, 2, 2)


# Resampling.
def resized(x: Any, size: Sequence[int], mode: str, align_corners: bool | None, scales: Sequence[float | None]) -> Any:
    """Return a picture of another size, one dimension after the other (the kernels are products)."""
    for dim, (to, scale) in enumerate(zip(size, scales, strict=True), 2):
        length = x.shape[dim]
        ratio = 1 / scale if scale else length / to
        if align_corners:
            places = np.arange(to) * ((length - 1) / (to - 1) if to > 1 else 0.0)
        else:
            places = (np.arange(to) + 0.5) * ratio - 0.5
        if mode == "nearest":
            x = np.take(x, np.minimum(np.floor(np.arange(to) * ratio).astype(int), length - 1), dim)
            continue
        if mode == "nearest-exact":
            x = np.take(x, np.clip(np.floor((np.arange(to) + 0.5) * ratio).astype(int), 0, length - 1), dim)
            continue
        if mode == "linear" and not align_corners:
            places = np.maximum(places, 0.0)
        low = np.floor(places).astype(int)
        t = (places - low).reshape(-1, *(1,) * (x.ndim - dim - 1))
        taken = {k: np.take(x, np.clip(low + k, 0, length - 1), dim) for k in (-1, 0, 1, 2)}
        if mode == "linear":
            x = taken[0] * (1 - t) + taken[1] * t
        else:
            near = lambda d: ((-0.75 + 2) * d - (-0.75 + 3)) * d * d + 1  # noqa: E731
            far = lambda d: ((-0.75 * d + 5 * 0.75) * d - 8 * 0.75) * d + 4 * 0.75  # noqa: E731
            x = taken[-1] * far(t + 1) + taken[0] * near(t) + taken[1] * near(1 - t) + taken[2] * far(2 - t)
    return x


for mode, theirs in {"nearest": "nearest", "nearest-exact": "nearest-exact", "bilinear": "linear", "bicubic": "cubic"}.items():
    for align in (False, True) if mode.startswith("bi") else (None,):
        ways = {} if align is None else {"align_corners": align}
        for size in ((5, 9), (3, 2), (6, 7)):
            add(F + "interpolate", lambda x, size, mode, align_corners=None, theirs=theirs: resized(x, size, theirs, align_corners, (None, None)), normal(2, 3, 6, 7), size=size, mode=mode, **ways)
        for factors in ((1.7, 0.6), (2.0, 2.0)):
            add(
                F + "interpolate",
                lambda x, scale_factor, mode, align_corners=None, theirs=theirs: resized(
                    x, [math.floor(n * s) for n, s in zip(x.shape[2:], scale_factor, strict=True)], theirs, align_corners, scale_factor
                ),
                normal(2, 3, 6, 7),
                scale_factor=factors,
                mode=mode,
                **ways,
            )
add(F + "interpolate", lambda x, size, mode: adaptive(x, size, np.mean), normal(2, 3, 6, 7), size=(4, 3), mode="area")
add(F + "interpolate", lambda x, size, mode, align_corners: resized(x, size, "linear", align_corners, (None,)), normal(2, 3, 6), size=(9,), mode="linear", align_corners=True)


def sampled(x: Any, grid: Any, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool = False) -> Any:
    """Return a picture `(batch, channels, high, wide)` at the places of a grid, element by element."""
    high, wide = x.shape[2:]
    found = np.zeros((x.shape[0], x.shape[1], *grid.shape[1:3]))
    for b, i, j in np.ndindex(found.shape[0], *found.shape[2:]):
        at = []
        for value, n in zip(grid[b, i, j], (wide, high), strict=True):
            place = (value + 1) / 2 * (n - 1) if align_corners else ((value + 1) * n - 1) / 2
            at.append(min(max(place, 0), n - 1) if padding_mode == "border" else place)
        if mode == "nearest":
            shares = [(round(at[0]), round(at[1]), 1.0)]
        else:
            low = [math.floor(a) for a in at]
            shares = [(low[0] + a, low[1] + c, (1 - abs(at[0] - low[0] - a)) * (1 - abs(at[1] - low[1] - c))) for a, c in itertools.product((0, 1), (0, 1))]
        for across, down, share in shares:
            if 0 <= across < wide and 0 <= down < high:
                found[b, :, i, j] += share * x[b, :, down, across]
    return found


for mode, padding_mode, align in itertools.product(("bilinear", "nearest"), ("zeros", "border"), (False, True)):
    add(F + "grid_sample", sampled, normal(2, 3, 5, 6), uniform(-1.3, 1.3, 2, 4, 3, 2), mode=mode, padding_mode=padding_mode, align_corners=align)


# Norms.
def normed(x: Any, dims: Any, eps: float, weight: Any = 1.0, bias: Any = 0.0) -> Any:
    """Return values less their mean, over the root of their variance and eps."""
    return (x - x.mean(dims, keepdims=True)) / np.sqrt(x.var(dims, keepdims=True) + eps) * weight + bias


add(F + "layer_norm", lambda x, shape, w, b, eps: normed(x, (-2, -1), eps, w, b), normal(3, 4, 5), (4, 5), normal(4, 5), normal(4, 5), eps=0.3)
add(F + "rms_norm", lambda x, shape, w, eps: x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w, normal(3, 4, 5), (5,), normal(5), eps=0.2)
add(F + "group_norm", lambda x, g, w, b, eps: normed(x.reshape(2, g, 3, 5), (2, 3), eps).reshape(x.shape) * w[:, None] + b[:, None], normal(2, 6, 5), 2, normal(6), normal(6), eps=0.1)
add(F + "instance_norm", lambda x, eps: normed(x, (2, 3), eps), normal(2, 3, 4, 5), eps=0.1)
add(
    F + "batch_norm",
    lambda x, m, v, w, b, training, momentum, eps: normed(x, (0, 2), eps, w[:, None], b[:, None]),
    normal(4, 3, 5),
    normal(3),
    uniform(0.5, 2, 3),
    normal(3),
    normal(3),
    training=True,
    momentum=0.1,
    eps=0.01,
)
add(
    F + "batch_norm",
    lambda x, m, v, w, b, training, momentum, eps: (x - m[:, None]) / np.sqrt(v[:, None] + eps) * w[:, None] + b[:, None],
    normal(4, 3, 5),
    normal(3),
    uniform(0.5, 2, 3),
    normal(3),
    normal(3),
    training=False,
    momentum=0.1,
    eps=0.01,
)
add(
    F + "local_response_norm",
    lambda x, size, alpha, beta, k: x / (k + alpha * np.stack([(x[:, max(0, c - 1) : c + 2] ** 2).sum(1) / size for c in range(5)], 1)) ** beta,
    normal(2, 5, 4),
    3,
    alpha=0.5,
    beta=0.7,
    k=1.5,
)

# Embeddings.
W = normal(9, 4)
add(F + "embedding", lambda i, w: w[i], integers(0, 9, 3, 2), W)
OFFSETS, BAG = np.array([0, 2, 2, 5]), integers(0, 9, 8)
for mode, reduced in {"sum": np.sum, "mean": np.mean, "max": np.max}.items():
    add(F + "embedding_bag", lambda i, w, o, mode, f=reduced: np.stack([f(w[i[a:b]], 0) if b > a else np.zeros(4) for a, b in zip(o, [*o[1:], len(i)], strict=True)]), BAG, W, OFFSETS, mode=mode)
add(F + "embedding_bag", lambda i, w, per_sample_weights, mode: np.einsum("bi,bid->bd", per_sample_weights, w[i]), integers(0, 9, 3, 2), W, per_sample_weights=normal(3, 2), mode="sum")

# Losses.
T = normal(4, 5)
REDUCED: dict[str, Callable[..., Any]] = {"mean": np.mean, "sum": np.sum, "none": lambda x: x}
for reduction, f in REDUCED.items():
    add(F + "mse_loss", lambda a, b, reduction, f=f: f((a - b) ** 2), T, normal(4, 5), reduction=reduction)
    add(F + "l1_loss", lambda a, b, reduction, f=f: f(np.abs(a - b)), T, normal(4, 5), reduction=reduction)
    add(F + "smooth_l1_loss", lambda a, b, beta, reduction, f=f: f(np.where(np.abs(a - b) < beta, (a - b) ** 2 / 2 / beta, np.abs(a - b) - beta / 2)), T, normal(4, 5), beta=0.4, reduction=reduction)
    add(
        F + "huber_loss",
        lambda a, b, delta, reduction, f=f: f(np.where(np.abs(a - b) <= delta, (a - b) ** 2 / 2, delta * (np.abs(a - b) - delta / 2))),
        T,
        normal(4, 5),
        delta=0.4,
        reduction=reduction,
    )
    add(
        F + "binary_cross_entropy_with_logits",
        lambda x, y, pos_weight, reduction, f=f: f(-(pos_weight * y * np.log(special.expit(x)) + (1 - y) * np.log(special.expit(-x)))),
        T,
        uniform(0, 1, 4, 5),
        pos_weight=uniform(0.5, 3, 5),
        reduction=reduction,
    )
    add(F + "soft_margin_loss", lambda x, y, reduction, f=f: f(np.log1p(np.exp(-y * x))), T, np.sign(normal(4, 5)), reduction=reduction)
    add(F + "margin_ranking_loss", lambda a, b, y, margin, reduction, f=f: f(np.maximum(0, -y * (a - b) + margin)), normal(6), normal(6), np.sign(normal(6)), margin=0.3, reduction=reduction)
    add(F + "hinge_embedding_loss", lambda x, y, margin, reduction, f=f: f(np.where(y == 1, x, np.maximum(0, margin - x))), T, np.sign(normal(4, 5)), margin=0.7, reduction=reduction)
    add(
        F + "multilabel_soft_margin_loss",
        lambda x, y, reduction, f=f: f(-(y * np.log(special.expit(x)) + (1 - y) * np.log(special.expit(-x))).mean(-1)),
        T,
        (normal(4, 5) > 0).astype(float),
        reduction=reduction,
    )
    add(
        F + "poisson_nll_loss",
        lambda x, y, log_input, full, reduction, f=f: f(np.exp(x) - y * x + np.where(y > 1, y * np.log(np.where(y > 1, y, 1)) - y + 0.5 * np.log(2 * np.pi * np.where(y > 1, y, 1)), 0)),
        T,
        integers(0, 6, 4, 5).astype(float),
        log_input=True,
        full=True,
        reduction=reduction,
    )
    add(
        F + "gaussian_nll_loss",
        lambda x, y, v, full, reduction, f=f: f(0.5 * (np.log(v) + (x - y) ** 2 / v) + 0.5 * math.log(2 * math.pi)),
        T,
        normal(4, 5),
        uniform(0.1, 2, 4, 5),
        full=True,
        reduction=reduction,
    )
    add(
        F + "cosine_embedding_loss",
        lambda a, b, y, margin, reduction, f=f: f(np.where(y == 1, 1 - _cosine(a, b), np.maximum(0, _cosine(a, b) - margin))),
        T,
        normal(4, 5),
        np.array([1, -1, -1, 1]),
        margin=0.1,
        reduction=reduction,
    )
    add(
        F + "triplet_margin_loss",
        lambda a, p, n, margin, swap, reduction, f=f: f(np.maximum(0, margin + _apart(a, p) - np.minimum(_apart(a, n), _apart(p, n)))),
        T,
        normal(4, 5),
        normal(4, 5),
        margin=0.7,
        swap=True,
        reduction=reduction,
    )
    add(
        F + "multi_margin_loss",
        lambda x, y, p, margin, reduction, f=f: f(np.array([sum(max(0, margin - r[c] + v) ** p for k, v in enumerate(r) if k != c) / len(r) for r, c in zip(x, y, strict=True)])),
        T,
        integers(0, 5, 4),
        p=2,
        margin=0.6,
        reduction=reduction,
    )
    add(F + "kl_div", lambda x, y, log_target, reduction, f=f: f(np.exp(y) * (y - x)), special.log_softmax(T, 1), special.log_softmax(normal(4, 5), 1), log_target=True, reduction=reduction)
add(F + "kl_div", lambda x, y, reduction: special.rel_entr(y, np.exp(x)).sum() / len(x), special.log_softmax(T, 1), special.softmax(normal(4, 5), 1), reduction="batchmean")


def _cosine(a: Any, b: Any) -> Any:
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


def _apart(a: Any, b: Any) -> Any:
    return np.linalg.norm(a - b + 1e-6, axis=-1)


def cross_entropy(x: Any, y: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0) -> Any:
    """Return the loss as its documentation has it; classes are dimension 1."""
    logs, classes = special.log_softmax(x, 1), x.shape[1]
    weight = np.ones(classes) if weight is None else weight
    shape = (1, -1, *(1,) * (x.ndim - 2))
    if y.dtype.kind == "f":
        y = y * (1 - label_smoothing) + label_smoothing / classes
        losses = -(logs * y * weight.reshape(shape)).sum(1)
        return losses.sum() / (losses.size if reduction == "mean" else 1) if reduction != "none" else losses
    kept = y != ignore_index
    safe = np.where(kept, y, 0)
    own = -np.take_along_axis(logs, safe[:, None], 1)[:, 0] * weight[safe]
    smooth = -(logs * weight.reshape(shape)).sum(1) / classes
    losses = np.where(kept, (1 - label_smoothing) * own + label_smoothing * smooth, 0)
    if reduction == "mean":
        return losses.sum() / np.where(kept, weight[safe], 0).sum()
    return losses.sum() if reduction == "sum" else losses


for reduction, smoothing, weight in itertools.product(REDUCED, (0.0, 0.2), (None, uniform(0.2, 2, 5))):
    ways = {"reduction": reduction, "label_smoothing": smoothing, "weight": weight}
    add(F + "cross_entropy", cross_entropy, T, np.array([1, 2, 4, 2]), ignore_index=2, **ways)
    add(F + "cross_entropy", cross_entropy, normal(2, 5, 3), integers(0, 5, 2, 3), **ways)
    add(F + "cross_entropy", cross_entropy, T, special.softmax(normal(4, 5), 1), **ways)
add(F + "nll_loss", lambda x, y, w: -(w[y] * x[np.arange(4), y]).sum() / w[y].sum(), T, integers(0, 5, 4), uniform(0.2, 2, 5))
add(F + "cross_entropy", cross_entropy, T, np.array([2, 2, 2, 2]), ignore_index=2)


def ctc(logs: Any, targets: Any, lengths: Any, counts: Any, reduction: str) -> Any:
    """Return the sum over all alignments, by the forward variables (Graves et al. 2006); 0 is the blank."""
    losses = []
    for b, (steps, count) in enumerate(zip(lengths, counts, strict=True)):
        labels = [0, *itertools.chain.from_iterable((t, 0) for t in targets[b, :count])]
        alpha = np.full(len(labels), -np.inf)
        alpha[:2] = logs[0, b, labels[:2]]
        for t in range(1, steps):
            before = alpha.copy()
            for s in range(len(labels)):
                ways = [before[s], before[s - 1] if s else -np.inf]
                if s > 1 and labels[s] and labels[s] != labels[s - 2]:
                    ways.append(before[s - 2])
                alpha[s] = special.logsumexp(ways) + logs[t, b, labels[s]]
        losses.append(-special.logsumexp(alpha[-2:]))
    found = np.array(losses)
    return {"none": found, "sum": found.sum(), "mean": (found / np.maximum(counts, 1)).mean()}[reduction]


for reduction in REDUCED:
    add(F + "ctc_loss", ctc, special.log_softmax(normal(9, 3, 6), -1), np.array([[1, 2, 2], [3, 3, 5], [4, 1, 2]]), np.array([9, 7, 8]), np.array([3, 2, 3]), reduction=reduction)


# Attention.
def attended(q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) -> Any:
    """Return attention as its documentation has it."""
    if enable_gqa:
        k, v = (np.repeat(each, q.shape[-3] // each.shape[-3], -3) for each in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) * (scale if scale is not None else 1 / math.sqrt(q.shape[-1]))
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    if attn_mask is not None:
        scores = np.where(attn_mask, scores, -np.inf) if attn_mask.dtype == bool else scores + attn_mask
    return special.softmax(scores, -1) @ v


Q, K = normal(2, 4, 5, 8), normal(2, 4, 6, 8)
SDPA = F + "scaled_dot_product_attention"
add(SDPA, attended, Q, K, normal(2, 4, 6, 3))
add(SDPA, attended, Q, K, normal(2, 4, 6, 8), is_causal=True)
add(SDPA, attended, Q, K, normal(2, 4, 6, 8), attn_mask=normal(5, 6), scale=0.7)
add(SDPA, attended, Q, K, normal(2, 4, 6, 8), attn_mask=np.eye(5, 6, dtype=bool) | (normal(5, 6) > 0))
add(SDPA, attended, Q, normal(2, 2, 6, 8), normal(2, 2, 6, 8), enable_gqa=True)

# Fourier transforms.
Z = normal(3, 8) + 1j * normal(3, 8)
for norm in ("backward", "ortho", "forward"):
    for name in ("fft", "ifft", "hfft"):
        add(f"fft.{name}", lambda x, n, dim, norm, name=name: getattr(np.fft, name)(x, n, dim, norm), Z, n=6, dim=-1, norm=norm)
    for name in ("rfft", "ihfft"):
        add(f"fft.{name}", lambda x, n, dim, norm, name=name: getattr(np.fft, name)(x, n, dim, norm), Z.real.copy(), n=9, dim=0, norm=norm)
    add("fft.irfft", lambda x, n, norm: np.fft.irfft(x, n, norm=norm), Z, n=11, norm=norm)
    add("fft.fft2", lambda x, norm: np.fft.fft2(x, norm=norm), Z, norm=norm)
    add("fft.irfftn", lambda x, s, norm: np.fft.irfftn(x, s, norm=norm), Z, s=(3, 9), norm=norm)
add("fft.fftshift", lambda x, dim: np.fft.fftshift(x, dim), Z, dim=1)
add("fft.ifftshift", np.fft.ifftshift, Z)


def chosen(parts: Iterable[str]) -> list[HeldCall]:
    """Return the calls whose names have one of some parts."""
    wanted = list(parts)
    return [case for case in CASES if not wanted or any(part in case.title for part in wanted)]


def check_all(cases: Iterable[HeldCall]) -> list[str]:
    """Return a line for each call that does not agree."""
    bench, found = Bench("pytorch"), []
    for case in cases:
        said, error = caught(partial(disagreement, case, bench))
        if error is not None:  # whatever a call raises is what is looked for
            said = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        if said:
            found.append(f"{case.title}: {said}")
    return found
