"""A small step of training under MSAdapter, written as msprobe writes a dump with tensors (level L1).

    PYTHONPATH=FOLDER python step.py OUT

Run by `capture` in the environment of a release, whose Python and MindSpore may be older than those of this
package: it imports nothing of it. Comes in: a package `torch` whose tensors are MindSpore's. Goes out:
OUT/dump.json, OUT/dump_tensor_data, and a line for each call that raised. msprobe itself hooks into a module
of MSAdapter that these releases lack.

Incoming gradients are those of zeros that are added to the output of each call; the gradients of its
inputs come from MindSpore's `vjp`. Neither needs the release's own autograd.
"""

# ruff: noqa: B905 - zip takes no strict= on Python 3.9.

import importlib
import json
import os
import sys

import mindspore as ms
import numpy as np
import torch

_MODULES = {"Functional": "torch.nn.functional", "Torch": "torch"}
# Places of tensors that are statistics: a layer has no gradients of them.
_STATISTICS = {"Functional.batch_norm": (1, 2)}


class Step:
    """Runs calls by their names; `made` are the calls that ran, with what came in and what came out."""

    def __init__(self, failed):
        self.failed = failed
        self.made = []
        self._added = None
        self._counts = {}

    def run(self, added):
        """Run the step, with these tensors added to the outputs; returns the loss."""
        self.made, self._added, self._counts = [], iter(added), {}
        return _loss(self)

    def __call__(self, name, *args, **kwargs):
        """Run a call and return its output, or its first argument where it has raised in a run before."""
        key = f"{name}.{self._counts.get(name, 0)}"
        self._counts[name] = self._counts.get(name, 0) + 1
        if key in self.failed:
            return args[0]
        try:
            output = function_of(name)(*args, **kwargs)
        except Exception as error:
            self.failed[key] = in_one_line(error)
            return args[0]
        self.made.append((key, args, kwargs, output))
        more = next(self._added, None)
        return output if more is None else output + more


def _loss(call):
    """Return the loss of a step: a line of layers, a picture, a lookup, and what joins them."""
    values = np.random.RandomState(0)

    def drawn(*shape):
        return torch.from_numpy(values.standard_normal(shape).astype(np.float32))

    x, weight, bias = drawn(4, 8), drawn(16, 8), drawn(16)
    h = call("Functional.linear", x, weight, bias)
    h = call("Functional.layer_norm", h, (16,), drawn(16), drawn(16))
    h = call("Functional.gelu", h)
    scores = call("Torch.matmul", h, call("Torch.transpose", h, 0, 1))
    h = call("Torch.matmul", call("Functional.softmax", scores, dim=-1), h)
    h = call("Functional.relu", h)
    h = call("Tensor.__mul__", h, call("Torch.sigmoid", h))
    h = call("Torch.add", h, call("Torch.tanh", h))

    p = call("Functional.conv2d", drawn(2, 3, 8, 8), drawn(4, 3, 3, 3), padding=1)
    p = call(
        "Functional.batch_norm", p, drawn(4), call("Torch.exp", drawn(4)), drawn(4), drawn(4), True
    )
    p = call("Functional.max_pool2d", call("Functional.relu", p), 2)
    p = call("Torch.mean", call("Torch.reshape", p, (2, 64)), 1)

    t = call("Functional.embedding", indices(0, 2, 1, 2, 2, 0), drawn(3, 5))
    t = call("Functional.layer_norm", call("Torch.reshape", t, (2, 3, 5)), (5,), drawn(5), drawn(5))
    t = call("Torch.cat", (t, call("Tensor.__sub__", t, drawn(2, 3, 5))), dim=1)
    t = call("Torch.sum", call("Torch.sqrt", call("Torch.exp", t)))

    loss = call("Functional.cross_entropy", h, indices(1, 15, 0, 7))
    loss = call("Tensor.__add__", loss, call("Torch.sum", call("Functional.log_softmax", p, dim=0)))
    return call("Tensor.__add__", loss, t)


def indices(*values):
    """Return whole numbers as a tensor."""
    return torch.from_numpy(np.array(values, np.int64))


def function_of(name):
    """Return the function of a name as dumps have it ("Functional.relu")."""
    prefix, _, last = name.partition(".")
    if prefix == "Tensor":
        return getattr(torch.Tensor, last)
    return getattr(importlib.import_module(_MODULES[prefix]), last)


def in_one_line(error):
    """Return an exception as one short line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def is_float(value):
    """Return whether a value is a tensor that has gradients."""
    return isinstance(value, ms.Tensor) and "float" in str(value.dtype).lower()


def incoming_gradients(step):
    """Return the gradient of the loss with respect to the output of each call, in their order."""
    zeros = [torch.from_numpy(np.zeros(tuple(made[3].shape), np.float32)) for made in step.made]
    again = Step(step.failed)
    grad = ms.grad(lambda *added: again.run(added), tuple(range(len(zeros))))
    return grad(*zeros)


def input_gradients(made, incoming):
    """Return the gradients of the differentiable positional inputs of a call, None for the others."""
    name, args, kwargs = made[0].rpartition(".")[0], made[1], made[2]
    flat = [each for arg in args for each in (arg if isinstance(arg, tuple) else (arg,))]
    left_out = _STATISTICS.get(name, ())
    places = [i for i, value in enumerate(flat) if is_float(value) and i not in left_out]

    def function(*leaves):
        supply = dict(zip(places, leaves))
        counted = iter(range(len(flat)))

        def filled(value):
            if isinstance(value, tuple):
                return tuple(filled(item) for item in value)
            place = next(counted)
            return supply.get(place, value)

        return function_of(name)(*[filled(arg) for arg in args], **kwargs)

    _, pull_back = ms.vjp(function, *[flat[place] for place in places])
    grads = pull_back(incoming)
    grads = grads if isinstance(grads, (tuple, list)) else (grads,)
    found = dict(zip(places, grads))
    return [found.get(place) for place, value in enumerate(flat) if isinstance(value, ms.Tensor)]


class Writer:
    """Writes tensors beside a dump and describes them as msprobe does."""

    def __init__(self, folder):
        self.folder = folder
        os.makedirs(folder)

    def described(self, value, name):
        """Return a value as a dump has it, with the files of tensors named after `name`."""
        if isinstance(value, ms.Tensor):
            return self._tensor(value, name)
        if isinstance(value, (tuple, list)):
            return [self.described(item, f"{name}.{i}") for i, item in enumerate(value)]
        return None if value is None else {"type": type(value).__name__, "value": value}

    def _tensor(self, value, name):
        array = np.asarray(value.asnumpy())
        np.save(os.path.join(self.folder, name + ".npy"), array)
        found = {"type": "mindspore.Tensor", "dtype": array.dtype.name.capitalize()}
        found.update(shape=list(array.shape), Max=float(array.max()), Min=float(array.min()))
        found.update(
            Mean=float(array.mean()), Norm=float(np.linalg.norm(array.ravel().astype(np.float64)))
        )
        found["data_name"] = name + ".npy"
        return found


def main(out):
    """Capture the step into a folder."""
    # An operator raises where it is called, not where its result is read.
    ms.set_context(mode=ms.PYNATIVE_MODE, pynative_synchronize=True)
    failed = {}
    # What raises is left out of the runs that count.
    Step(failed).run(())
    step = Step(failed)
    step.run(())
    writer = Writer(os.path.join(out, "dump_tensor_data"))
    data = {}
    for made, incoming in zip(step.made, incoming_gradients(step)):
        key, args, kwargs, output = made
        forward, backward = key + ".forward", key + ".backward"
        data[forward] = {
            "input_args": writer.described(list(args), forward + ".input"),
            "input_kwargs": {
                k: writer.described(v, forward + ".input." + k) for k, v in kwargs.items()
            },
            "output": writer.described([output], forward + ".output"),
        }
        try:
            grads = input_gradients(made, incoming)
        except Exception as error:
            failed[backward] = in_one_line(error)
            continue
        data[backward] = {
            "input": writer.described([incoming], backward + ".input"),
            "output": writer.described(grads, backward + ".output"),
        }
    head = {"task": "tensor", "level": "L1", "framework": "mindtorch", "dump_data_dir": None}
    with open(os.path.join(out, "dump.json"), "w") as file:
        json.dump(dict(head, data=data), file)
    print(
        json.dumps({"mindspore": ms.__version__, "torch": str(torch.__version__), "failed": failed})
    )


if __name__ == "__main__":
    main(sys.argv[1])
