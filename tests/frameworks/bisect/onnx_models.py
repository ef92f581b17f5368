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
        self.opset = 17
        self.prefix = ""

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
        name = f"{self.prefix}/{op.lower()}_{count}"
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
        scale = self.weight(self.random.uniform(0.5, 1.5, wide))
        return self.add(
            "Add", self.add("Mul", self.add("Div", centred, root), scale), self.normal(wide)
        )

    def gelu(self, x: str) -> str:
        bell = self.add("Erf", self.add("Div", x, self.weight(2.0**0.5)))
        doubled = self.add("Mul", x, self.add("Add", bell, self.weight(1.0)))
        return self.add("Mul", doubled, self.weight(0.5))

    def model(self) -> onnx.ModelProto:
        out = onnx.ValueInfoProto(name=self.output)
        graph = helper.make_graph(self.nodes, "graph", self.inputs, [out], self.initializers)
        imports = [helper.make_opsetid("", self.opset)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=8)
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


def conv_bn_bare(seed: int) -> Net:
    """The same without anything behind it: what another layout rounds otherwise shows, too."""
    net = Net(seed)
    x = net.input("image", [1, 3, 16, 16])
    net.norm(net.conv(x, 3, 8, 3e5), 8, 3e5)
    return net


def conv_mul(seed: int) -> Net:
    """Weights of 1e-30 times 1e-17 are 0 in float32; with an input of 1e30 in between they are not."""
    net = Net(seed)
    x = net.block(net.input("image", [1, 3, 16, 16]), 3, 8)
    big = net.add("Mul", x, net.weight(np.full((1, 8, 1, 1), 1e30)))
    small = net.add("Conv", big, net.normal(8, 8, 3, 3, scale=1e-30), pads=[1, 1, 1, 1])
    scaled = net.add("Mul", small, net.weight(np.full((8, 1, 1), 1e-17)))
    return tail(net, net.add("Div", scaled, net.weight(1e-17)), 8)


def conv_add(seed: int) -> Net:
    """A bias of 3e6 and a sum that takes it away."""
    net = Net(seed)
    x = net.block(net.input("image", [1, 3, 16, 16]), 3, 8)
    return tail(
        net, net.add("Add", net.conv(x, 8, 8, 3e6), net.weight(np.full((8, 1, 1), -3e6))), 8
    )


def div_mul(seed: int) -> Net:
    """1/x is infinite for x = 1e-39, y/x is not."""
    net = Net(seed)
    x = net.block(net.input("image", [1, 3, 16, 16]), 3, 8)
    some = net.add("Add", net.add("Sigmoid", x), net.weight(1.0))
    inverse = net.add("Div", net.weight(1.0), net.add("Mul", some, net.weight(1e-39)))
    product = net.add("Mul", inverse, net.add("Mul", some, net.weight(1e-38)))
    limited = net.add("Min", product, net.weight(np.full((1, 8, 1, 1), 20.0)))
    return tail(net, net.add("Mul", limited, x), 8)


def layer_norm(seed: int) -> Net:
    """A mean of 3e4: sums in another order are rounded otherwise. Below opset 17 the fusion is extended."""
    net = Net(seed)
    net.opset = 14
    x = net.dense(net.input("tokens", [1, 16, 32]), 32, 64)
    x = net.layer_norm(net.add("Add", x, net.weight(3e4)), 64)
    net.dense(net.gelu(net.dense(x, 64, 64)), 64, 8)
    return net


def matmul_scale(seed: int) -> Net:
    """Queries times 1e-42 lose most of their digits, unless the product is scaled instead."""
    net = Net(seed)
    x = net.dense(net.input("tokens", [1, 16, 32]), 32, 64)
    query = net.add("Mul", net.dense(x, 64, 64), net.weight(1e-42))
    key = net.add("Transpose", net.add("Tanh", net.dense(x, 64, 64)), perm=[0, 2, 1])
    scores = net.add("MatMul", query, net.add("Mul", key, net.weight(1e38)))
    scores = net.add("Softmax", net.add("Mul", scores, net.weight(1e4)), axis=-1)
    net.dense(net.add("MatMul", scores, x), 64, 8)
    return net


def nchwc(seed: int) -> Net:
    """Large terms that cancel: another layout of a convolution sums them in another order."""
    net = Net(seed)
    x = net.add("Relu", net.conv(net.input("image", [1, 3, 16, 16]), 3, 8))
    large = net.random.standard_normal((8, 8, 3, 3)) * 1e4
    small = net.random.standard_normal((2, 8, 8, 3, 3)) * 0.1
    weights = net.weight(np.concatenate([large + small[0], small[1] - large], axis=1))
    return tail(net, net.add("Conv", net.add("Concat", x, x, axis=1), weights, pads=[1] * 4), 8)


def in_branch(seed: int) -> Net:
    """The same as `div_mul` in a branch of an If, which takes its constants from outside."""
    net, branch = Net(seed), Net(seed)
    x = net.input("tokens", [16, 32])
    some = net.add("Add", net.add("Sigmoid", x), net.weight(1.0))
    weights = [net.weight(value) for value in (1.0, 1e-39, 1e-38, 20.0)]
    branch.prefix = "/then"
    inverse = branch.add("Div", weights[0], branch.add("Mul", some, weights[1]))
    product = branch.add("Mul", inverse, branch.add("Mul", some, weights[2]))
    inner = branch.add("Min", product, weights[3])
    then = helper.make_graph(branch.nodes, "then", [], [onnx.ValueInfoProto(name=inner)])
    other = helper.make_node("Neg", [some], ["/else/out"])
    otherwise = helper.make_graph([other], "else", [], [onnx.ValueInfoProto(name="/else/out")])
    is_positive = net.add("Greater", net.add("ReduceSum", some, keepdims=0), net.weight(0.0))
    net.add("Mul", net.add("If", is_positive, then_branch=then, else_branch=otherwise), x)
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


def invalid_pair(seed: int) -> Net:
    """Two rewrite rules together make an invalid graph (microsoft/onnxruntime issue 32416)."""
    net = Net(seed)
    x = net.block(net.input("image", [1, 3, 16, 16]), 3, 8)
    same = net.add("Cast", x, to=TensorProto.FLOAT)
    one = net.add("Div", net.weight(1.0), net.weight(1.0))
    return tail(net, net.add("Mul", same, one), 8)


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
    each.__name__: each
    for each in (
        conv_bn,
        conv_bn_bare,
        conv_mul,
        conv_add,
        div_mul,
        in_branch,
        gemm_bias,
        layer_norm,
        matmul_scale,
        nchwc,
        quantized,
        invalid_pair,
        honest_cnn,
        honest_transformer,
    )
}


def main(folder: Path, seed: int) -> None:
    for name, make in MODELS.items():
        onnx.save(make(seed).model(), folder / f"{name}.onnx")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
