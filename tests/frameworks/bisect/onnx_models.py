"""ONNX models with randomised weights: those in which an optimisation changes the result, and honest ones.

    python onnx_models.py FOLDER

writes `NAME.onnx` for each, with the interpreter that has onnx; called by `test_bisect_onnx`.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Net:
    """A model that is put together node by node; each method returns the name of a value."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.output = ""

    def input(self, name: str, shape: Sequence[int | str], dtype: int = TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def weight(self, value: object, dtype: str = "float32") -> str:
        name = f"w{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def normal(self, *shape: int, scale: float = 1.0) -> str:
        return self.weight(self.random.standard_normal(shape) * scale)

    def add(self, op: str, *inputs: str, **attributes: object) -> str:
        count = sum(node.op_type == op for node in self.nodes)
        name = f"/{op.lower()}_{count}"
        self.nodes.append(helper.make_node(op, inputs, [f"{name}/out"], name=name, **attributes))
        self.output = f"{name}/out"
        return self.output

    def conv(self, x: str, cin: int, cout: int, bias: object | None = None, kernel: int = 3) -> str:
        w = self.normal(cout, cin, kernel, kernel, scale=(cin * kernel * kernel) ** -0.5)
        b = self.normal(cout) if bias is None else self.weight(np.broadcast_to(bias, cout))
        return self.add("Conv", x, w, b, pads=[kernel // 2] * 4)

    def norm(self, x: str, channels: int, mean: float = 0.0) -> str:
        scale = self.weight(self.random.uniform(0.5, 1.5, channels))
        shift = self.normal(channels)
        means = self.weight(self.random.standard_normal(channels) + mean)
        variance = self.weight(self.random.uniform(0.5, 1.5, channels))
        return self.add("BatchNormalization", x, scale, shift, means, variance)

    def block(self, x: str, cin: int, cout: int) -> str:
        return self.add("Relu", self.norm(self.conv(x, cin, cout), cout))

    def dense(self, x: str, wide: int, out: int) -> str:
        return self.add(
            "Add", self.add("MatMul", x, self.normal(wide, out, scale=wide**-0.5)), self.normal(out)
        )

    def layer_norm(self, x: str, wide: int) -> str:
        """As an exporter writes it that does not know the operator."""
        centred = self.add("Sub", x, self.add("ReduceMean", x, axes=[-1]))
        variance = self.add("ReduceMean", self.add("Pow", centred, self.weight(2.0)), axes=[-1])
        root = self.add("Sqrt", self.add("Add", variance, self.weight(1e-5)))
        scaled = self.add(
            "Mul", self.add("Div", centred, root), self.weight(self.random.uniform(0.5, 1.5, wide))
        )
        return self.add("Add", scaled, self.normal(wide))

    def gelu(self, x: str) -> str:
        bell = self.add("Erf", self.add("Div", x, self.weight(2.0**0.5)))
        doubled = self.add("Mul", x, self.add("Add", bell, self.weight(1.0)))
        return self.add("Mul", doubled, self.weight(0.5))

    def model(self, opset: int = 17) -> onnx.ModelProto:
        out = onnx.ValueInfoProto(name=self.output)
        graph = helper.make_graph(self.nodes, "graph", self.inputs, [out], self.initializers)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8
        )
        return onnx.shape_inference.infer_shapes(model)


def tail(net: Net, x: str, channels: int) -> Net:
    """Two more blocks, so that the fault does not stand at the end."""
    x = net.block(x, channels, 8)
    net.add("GlobalAveragePool", net.block(x, 8, 8))
    return net


def conv_bn(seed: int) -> Net:
    """A bias of 3e5 that batch norm takes away: float32 has steps of 1/32 there, unless both are fused."""
    net = Net(seed)
    x = net.block(net.input("image", [1, 3, 16, 16]), 3, 8)
    return tail(net, net.add("Relu", net.norm(net.conv(x, 8, 8, 3e5), 8, 3e5)), 8)


def conv_mul(seed: int) -> Net:
    """Weights of 1e-30 times 1e-15 are 0 in float32; with the input of 1e30 in between they are not."""
    net = Net(seed)
    x = net.block(net.input("image", [1, 3, 16, 16]), 3, 8)
    big = net.add("Mul", x, net.weight(np.full((1, 8, 1, 1), 1e30)))
    w = net.weight(net.random.standard_normal((8, 8, 3, 3)) * 1e-30)
    small = net.add("Conv", big, w, pads=[1, 1, 1, 1])
    scaled = net.add("Mul", small, net.weight(np.full((8, 1, 1), 1e-17)))
    return tail(
        net, net.add("Mul", net.add("Identity", scaled), net.weight(np.full((1, 8, 1, 1), 1e17))), 8
    )


def conv_add(seed: int) -> Net:
    """A bias of 3e6 and a sum that takes it away."""
    net = Net(seed)
    x = net.block(net.input("image", [1, 3, 16, 16]), 3, 8)
    return tail(
        net, net.add("Add", net.conv(x, 8, 8, 3e6), net.weight(np.full((8, 1, 1), -3e6))), 8
    )


def pad_pool(seed: int) -> Net:
    """A Pad by nothing is fused into an AveragePool with ceil_mode, which then counts what it pads itself."""
    net = Net(seed)
    x = net.block(net.input("image", [1, 3, 15, 15]), 3, 8)
    padded = net.add("Pad", x, net.weight([0] * 8, "int64"))
    pooled = net.add("AveragePool", padded, kernel_shape=[4, 4], strides=[4, 4], ceil_mode=1)
    return tail(net, pooled, 8)


def div_mul(seed: int) -> Net:
    """1/x is infinite for x = 1e-39, y/x is not."""
    net = Net(seed)
    x = net.block(net.input("image", [1, 3, 16, 16]), 3, 8)
    tiny = net.weight(np.full((1, 8, 1, 1), 1e-39))
    denominator = net.add("Mul", net.add("Add", net.add("Sigmoid", x), net.weight(1.0)), tiny)
    inverse = net.add("Div", net.weight(1.0), denominator)
    product = net.add("Mul", inverse, net.add("Mul", x, net.weight(1e-38)))
    return tail(net, net.add("Clip", product, net.weight(-9.0), net.weight(9.0)), 8)


def layer_norm(seed: int) -> Net:
    net = Net(seed)
    x = net.dense(net.input("tokens", [1, 16, 32]), 32, 64)
    x = net.add("Add", x, net.weight(3e4))
    x = net.layer_norm(x, 64)
    net.dense(net.gelu(net.dense(x, 64, 64)), 64, 8)
    return net


def matmul_scale(seed: int) -> Net:
    """Scores of queries and keys, scaled before they are multiplied: 1e20 * 1e20 overflows afterwards."""
    net = Net(seed)
    x = net.dense(net.input("tokens", [1, 16, 32]), 32, 64)
    query = net.add("Mul", net.dense(x, 64, 64), net.weight(1e20))
    query = net.add("Div", net.add("Relu", query), net.weight(1e20))
    query = net.add("Mul", net.add("Mul", net.add("Neg", query), net.weight(1e25)), net.weight(1.0))
    key = net.add(
        "Mul", net.add("Transpose", net.dense(x, 64, 64), perm=[0, 2, 1]), net.weight(1e-25)
    )
    scores = net.add("MatMul", query, key)
    net.dense(net.add("MatMul", net.add("Softmax", scores), x), 64, 8)
    return net


def gemm_bias(seed: int) -> Net:
    """MatMul and Add become Gemm, which sums onto the bias of 3e6; it is taken away afterwards."""
    net = Net(seed)
    x = net.dense(net.input("tokens", [16, 32]), 32, 512)
    y = net.add("MatMul", x, net.normal(512, 64, scale=512**-0.5))
    y = net.add("Add", y, net.weight(np.full(64, 3e6)))
    y = net.add("Sub", y, net.weight(3e6))
    net.dense(net.add("Relu", y), 64, 8)
    return net


def half_cast(seed: int) -> Net:
    """float32 -> float16 -> float32, which casts that are eliminated no longer round."""
    net = Net(seed)
    x = net.dense(net.input("tokens", [1, 16, 32]), 32, 64)
    x = net.add("Add", x, net.weight(3e3))
    x = net.add("Cast", x, to=TensorProto.FLOAT16)
    x = net.add("Cast", x, to=TensorProto.FLOAT)
    x = net.add("Sub", x, net.weight(3e3))
    net.dense(x, 64, 8)
    return net


def quantized(seed: int) -> Net:
    net = Net(seed)
    x = net.input("image", [1, 3, 16, 16])

    def qdq(x: str, scale: float) -> str:
        s, z = net.weight(scale), net.weight(128, "uint8")
        return net.add("DequantizeLinear", net.add("QuantizeLinear", x, s, z), s, z)

    x = qdq(x, 0.03)
    for cin, cout in ((3, 8), (8, 8)):
        w = net.weight(net.random.integers(-127, 127, (cout, cin, 3, 3)), "int8")
        w = net.add("DequantizeLinear", w, net.weight(0.01), net.weight(0, "int8"))
        x = qdq(net.add("Conv", x, w, net.normal(cout), pads=[1] * 4), 0.1)
    net.add("GlobalAveragePool", x)
    return net


def cast_pair(seed: int) -> Net:
    """Two rewrite rules together make an invalid graph: a Cast to its own dtype, and a product with 1/x."""
    net = Net(seed)
    x = net.block(net.input("image", [1, 3, 16, 16]), 3, 8)
    same = net.add("Cast", x, to=TensorProto.FLOAT)
    one = net.weight(1.0)
    return tail(
        net, net.add("Mul", net.add("Div", one, net.add("Add", same, net.weight(2.0))), same), 8
    )


def honest_cnn(seed: int) -> Net:
    net = Net(seed)
    x = net.block(net.input("image", ["batch", 3, 32, 32]), 3, 16)
    for _ in range(3):
        inner = net.block(x, 16, 16)
        x = net.add("Relu", net.add("Add", net.norm(net.conv(inner, 16, 16), 16), x))
        x = net.block(net.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), 16, 16)
    x = net.add("Flatten", net.add("GlobalAveragePool", x))
    net.add("Gemm", x, net.normal(10, 16, scale=0.25), net.normal(10), transB=1)
    return net


def honest_transformer(seed: int) -> Net:
    net = Net(seed)
    wide, heads = 64, 4
    x = net.dense(net.input("tokens", ["batch", 16, 32]), 32, wide)
    for _ in range(2):
        y = net.layer_norm(x, wide)
        parts = []
        for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
            shape = net.weight([0, 0, heads, wide // heads], "int64")
            part = net.add("Reshape", net.dense(y, wide, wide), shape)
            parts.append(net.add("Transpose", part, perm=perm))
        scores = net.add("MatMul", parts[0], parts[1])
        scores = net.add(
            "Softmax", net.add("Div", scores, net.weight((wide / heads) ** 0.5)), axis=-1
        )
        mixed = net.add("Transpose", net.add("MatMul", scores, parts[2]), perm=[0, 2, 1, 3])
        mixed = net.add("Reshape", mixed, net.weight([0, 0, wide], "int64"))
        x = net.add("Add", x, net.dense(mixed, wide, wide))
        inner = net.gelu(net.dense(net.layer_norm(x, wide), wide, 4 * wide))
        x = net.add("Add", x, net.dense(inner, 4 * wide, wide))
    net.layer_norm(x, wide)
    return net


MODELS: dict[str, Callable[[int], Net]] = {
    "conv_bn": conv_bn,
    "conv_mul": conv_mul,
    "conv_add": conv_add,
    "pad_pool": pad_pool,
    "div_mul": div_mul,
    "layer_norm": layer_norm,
    "matmul_scale": matmul_scale,
    "gemm_bias": gemm_bias,
    "half_cast": half_cast,
    "quantized": quantized,
    "cast_pair": cast_pair,
    "honest_cnn": honest_cnn,
    "honest_transformer": honest_transformer,
}


def main(folder: Path, seed: int) -> None:
    for name, make in MODELS.items():
        onnx.save(make(seed).model(), folder / f"{name}.onnx")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
