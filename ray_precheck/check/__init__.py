"""One API call from start to end, without Ray: a row of stations, each with what the one before gives.

    station    takes            gives             and where the call is of another kind
    decode     TaskPayload      Decoded
    inputs     Decoded          Inputs            drawn, from the dump, or from saved files
    device     Inputs           UnderTest         once more, with safer or transposed inputs;
                                                  tested: the dump's results, or those of a device elsewhere
    bench      UnderTest        Benched           no bench runs for a random call
    judge      Benched          DirectionCheck    random.judge: by statistics, or nothing was dropped
    row        DirectionChecks  TaskResult        errors are explained; their tensors are saved

`checker` walks the row: forward from the inputs to the judgement, then backward from the gradients that are
tested (`Device.run_gradients`) to theirs. What passes from station to station is frozen; only the device
keeps a state. A station that cannot go on raises `NotCheckable`, which becomes the row of a SKIP, or of
backward alone, in the checker. `Checker.measure` ends at the device, and `Checker.check` with what that gave
begins after it. Whatever a side raises is a value: `attempt`.

Import `check.checker` only where the frameworks may be loaded: in the workers.
"""
