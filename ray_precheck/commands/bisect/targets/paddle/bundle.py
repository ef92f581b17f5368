"""What a report of a fault in Paddle Inference needs, as one .zip file.

Comes in: the model or its smallest wrong part, the settings, inputs and versions. Goes out: an archive with
them and `test_part.py`, a test that shows the fault without this package. Called by the target.
"""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray_precheck.commands.bisect.targets.paddle.model_files import INPUTS, OUTPUTS, PaddleFiles
from ray_precheck.errors import UsageError

_TEST = '''"""The model with everything off and with the settings in question: right where both agree."""

import os

os.environ["FLAGS_enable_pir_api"] = "{pir}"

import numpy as np
from paddle import inference

LIMIT = 1e-4


def outputs(settle):
    config = inference.Config("{model}", "{params}")
    settle(config)
    predictor = inference.create_predictor(config)
    with np.load("inputs.npz") as arrays:
        for name in predictor.get_input_names():
            handle = predictor.get_input_handle(name)
            handle.reshape(arrays[name].shape)
            handle.copy_from_cpu(arrays[name])
    predictor.run()
    return {{n: predictor.get_output_handle(n).copy_to_cpu() for n in predictor.get_output_names()}}


def off(config):
    config.switch_ir_optim(False)
    config.set_optimization_level(0)
    config.disable_onednn()


def on(config):
{on}


def test_outputs_agree():
    golden, tested = outputs(off), outputs(on)
    for name, array in golden.items():
        largest = np.abs(array).max()
        assert np.abs(tested[name] - array).max() <= LIMIT * largest, name
'''


def write_bundle(
    path: Path,
    files: PaddleFiles,
    inputs: Path,
    outputs: Path,
    settings: Mapping[str, Any],
    run: Mapping[str, str],
) -> None:
    """Write the archive of a model, or of its smallest part that is wrong; `outputs` are the golden ones.

    Raises:
        UsageError: it cannot be written.
    """
    model, params = files.model, files.params
    listed = [f"    config.delete_pass({name!r})" for name in settings.get("off", ())]
    if settings["rung"] == "bf16":
        listed.append("    config.enable_onednn_bfloat16()")
    test = _TEST.format(
        pir=int(files.is_new),
        model=model.name,
        params=params.name,
        on="\n".join(listed) or "    pass",
    )
    said = json.dumps({"run": dict(run), "settings": dict(settings)}, indent=1) + "\n"
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(model, model.name)
            if params.exists():
                archive.write(params, params.name)
            archive.write(inputs, INPUTS)
            archive.write(outputs, OUTPUTS)
            archive.writestr("run.json", said)
            archive.writestr("test_part.py", test)
    except OSError as error:
        raise UsageError(f"--bundle {path}: cannot write it: {error.strerror}") from None
