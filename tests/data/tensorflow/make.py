"""Makes dumps.tar.xz anew, with TensorFlow's own debugger: `python make.py` in TensorFlow's environment.

Captures of lenet.py: `graph`, `graph_wrong`, `graph_nan` (tf.function), the same of `eager`, `health_nan`
(FULL_HEALTH), all made by the program's own `capture`, and `session`, of v1. Source texts and all but the
innermost lines of stacks are left out, which are most of their size. It takes a minute, and gcc.
"""

import glob
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
LINES = 24


def main() -> None:
    import tensorflow

    with tempfile.TemporaryDirectory() as folder:
        kernel = Path(folder, "wrong_matmul.so")
        include = Path(tensorflow.__file__).parent / "include"
        source = HERE / "wrong_matmul.c"
        subprocess.run(
            ["gcc", "-O1", "-shared", "-fPIC", f"-I{include}", source, "-o", kernel], check=True
        )
        dumps = Path(folder, "dumps")
        for how in ("graph", "eager"):
            for fault in ("", "wrong", "nan"):
                _capture(dumps / f"{how}_{fault}".rstrip("_"), how, fault, kernel)
        _capture(dumps / "health_nan", "graph", "nan", kernel, mode="FULL_HEALTH")
        _run("session", "", kernel, DUMP=str(dumps / "session"))
        with tarfile.open(HERE / "dumps.tar.xz", "w:xz", preset=9) as archive:
            for each in sorted(dumps.iterdir()):
                archive.add(each, each.name)
    print((HERE / "dumps.tar.xz").stat().st_size)


def _capture(folder: Path, how: str, fault: str, kernel: Path, mode: str = "FULL_TENSOR") -> None:
    """Run the script as `ray-precheck capture --framework tensorflow` does."""
    import json

    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as notes:
        found = {"notes": notes, "root": str(ROOT), "folder": str(folder), "mode": mode}
        _run(
            how,
            fault,
            kernel,
            RAY_PRECHECK_CAPTURE=json.dumps(found),
            RAY_PRECHECK_CAPTURED_FRAMEWORKS="tensorflow=tensorflow",
            PYTHONPATH=str(ROOT / "ray_precheck" / "capture" / "start"),
        )
    _thin(folder)


def _run(how: str, fault: str, kernel: Path, **variables: str) -> None:
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
    environment = {**os.environ, **quiet, **variables, "PLANTED": fault, "KERNEL": str(kernel)}
    subprocess.run([sys.executable, HERE / "lenet.py", how], env=environment, check=True, cwd=HERE)


def _thin(folder: Path) -> None:
    import tensorflow
    from tensorflow.core.protobuf import debug_event_pb2

    for path in glob.glob(f"{folder}/*"):
        events = [
            debug_event_pb2.DebugEvent.FromString(record.numpy())
            for record in tensorflow.data.TFRecordDataset(path)
        ]
        with tensorflow.io.TFRecordWriter(path) as writer:
            for event in events:
                what = event.WhichOneof("what")
                message = getattr(event, what)
                if what == "source_file":
                    del message.lines[:]
                    message.file_path = _moved(message.file_path)
                elif what in ("graph_op_creation", "execution"):
                    kept = message.code_location.stack_frame_ids[-LINES:]
                    del message.code_location.stack_frame_ids[:]
                    message.code_location.stack_frame_ids.extend(kept)
                writer.write(event.SerializeToString())


def _moved(path: str) -> str:
    """Return the path of a source as on a user's machine."""
    _, found, rest = path.rpartition("/site-packages/")
    return f"/site-packages/{rest}" if found else path.replace(str(HERE), "/home/user")


if __name__ == "__main__":
    main()
