"""How many planted faults each standard finds, and how many alarms are false: VERDICTS.md."""
