"""Compares captures of this package with those of msprobe, on models of transformers and torchvision.

    python -m scripts.capture_parity --msprobe FOLDER [FOLDER ...] [--models NAME ...] [--levels L1 mix]
                                     [--gradients node|border] [--captures FOLDER]

msprobe is no dependency of this project: `--msprobe` names the folders of it and of what it needs, which only
the processes get that run it. transformers and torchvision are expected beside torch.

`models` makes the models, `child` captures a step, `records` compares two dumps record by record, `reasons`
says why a difference is there, `verdicts` prechecks both and lets msprobe compare them, `main` puts it
together.
"""
