"""One API call from start to end, without Ray: a row of stations, each with what the one before gives.

    station             takes            gives             and where the call is of another kind
    decode              TaskPayload      Decoded
    inputs              Decoded          Inputs            drawn, from the dump, or from saved files
    sides.device        Inputs           UnderTest         sides.again: once more, safer inputs
                                                           sides.tested: the dump's results, or those
                                                           of a device elsewhere
    sides.bench         UnderTest        Benched           no bench runs for a random call
    judge               Benched          DirectionCheck    random.judge: by statistics
                                                           random.quiet_dropout: nothing was dropped
    explain             DirectionCheck   DirectionCheck    msprobe's rule alone
    row                 DirectionChecks  TaskResult        of an error with its tensors

`checker` walks the row: forward from the inputs to the explanation, then backward from the gradients
that are tested (`Device.run_gradients`) to theirs. What passes from station to station is frozen; only
the device keeps a state. A station that cannot go on raises `NotCheckable`, which becomes the row of a
SKIP in `guard`, or of backward alone in the checker. `Checker.measure` ends at the device, and
`Checker.check` with what that gave begins after it. Whatever a side raises is a value: `sides.attempt`.

Import `check.checker` only where the frameworks may be loaded: in the workers.
"""
