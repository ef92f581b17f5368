"""The yardstick of `locate`: one fault in one call of a training step, and does it name the call?

    python -m scripts.locate_faults [--models NAME ...] [--dtypes float32 bfloat16]

`models` makes models, `runs` runs a step and captures it, with sums in another order, `planted` has the
faults and their sizes, `watching` measures what a fault moves beside honest errors, `gradients` and
`updates` do both for backward passes and optimizers, `collective` has a fault between two processes,
`making` all captures of a model. `replaying` is the baseline, own errors by the precheck; `twins` leaves
tensors or sketches out of a capture; `locating` runs locate; `child` does all of it for a model, `tables`
counts, and `main` is the command.
"""
