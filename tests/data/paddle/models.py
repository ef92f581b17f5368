"""Makes the models of the tests of `bisect paddle`, in Paddle's own interpreter:

    python models.py new|old FOLDER

Into FOLDER come `honest` and `biased` (.json or .pdmodel, .pdiparams), two of the same network: a convolution
with batch norm and relu, a second one beside a shortcut, two linear layers, a cosine. In `biased` the first
convolution has a bias of 3e5, and the batch norm behind it a mean of 3e5, which takes it away: what folds one
into the other rounds elsewhere (3e5 * 2**-24 = 0.02). `inputs.npz` is of both.
"""

import os
import sys
from pathlib import Path

os.environ.update({"FLAGS_enable_pir_api": "1" if sys.argv[1] == "new" else "0"})

import numpy as np
import paddle

paddle.enable_static()
paddle.seed(1)
CPU = paddle.CPUPlace()


def network(x):
    """Return the outputs, and the statistics that the first batch norm has."""
    functional = paddle.nn.functional
    layers = paddle.nn
    if sys.argv[1] == "old":
        # These make the addition of a bias with an axis, as models of that format have it.
        static = paddle.static.nn
        h = static.conv2d(x, 8, 3, padding=1)
        h = static.batch_norm(h, is_test=True, act="relu")
        g = static.conv2d(h, 8, 3, padding=1)
        h = functional.relu(h + static.batch_norm(g, is_test=True))
    else:
        first, second = layers.Conv2D(3, 8, 3, padding=1), layers.Conv2D(8, 8, 3, padding=1)
        norms = layers.BatchNorm2D(8), layers.BatchNorm2D(8)
        for norm in norms:
            norm.eval()
        h = functional.relu(norms[0](first(x)))
        h = functional.relu(h + norms[1](second(h)))
    h = paddle.flatten(h, 1)
    h = functional.relu(layers.Linear(512, 16)(h))
    return functional.softmax(layers.Linear(16, 10)(h)), cosine(h)


def cosine(x):
    """Return the cosine, of which oneDNN has no kernel: nothing stands in for Paddle's own."""
    if sys.argv[1] == "new":
        return paddle.cos(x)
    helper = paddle.base.layer_helper.LayerHelper("cos")
    out = helper.create_variable_for_type_inference(x.dtype)
    helper.append_op(type="cos", inputs={"X": x}, outputs={"Out": out})
    return out


def save(path, bias):
    """Save the network with a bias of its first convolution that its batch norm takes away."""
    main, start = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, start), paddle.utils.unique_name.guard():
        x = paddle.static.data("x", [None, 3, 8, 8], "float32")
        outputs = list(network(x))
        executor = paddle.static.Executor(CPU)
        executor.run(start)
        scope = paddle.static.global_scope()
        means = ("batch_norm_0.w_1", "batch_norm2d_0.w_1") if bias else ()
        for name in ("conv2d_0.b_0", *means):
            if scope.find_var(name) is not None and name != "batch_norm_0.w_2":
                tensor = scope.find_var(name).get_tensor()
                tensor.set(np.full(8, bias, "float32"), CPU)
        paddle.static.save_inference_model(str(path), [x], outputs, executor, program=main)


folder = Path(sys.argv[2])
folder.mkdir(parents=True, exist_ok=True)
save(folder / "honest", 0.0)
save(folder / "biased", 3e5)
x = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype("float32")
np.savez(folder / "inputs.npz", x=x)
