"""Proves on your own devices that N replicas do what one does, claim by claim.

python -m tfmirror.verify --gpus=8
python -m tfmirror.verify --gpus=4 --model=cnn --json_file=verified.json

Each cell says whether so many replicas gave the same bits as one, or by how much the
largest entry differs. Exit code 4 if a claim does not hold.
"""

import json

from tfmirror import command, command_config, errors

MOST = command_config.MOST_REPLICAS_TO_VERIFY


def main(settings):
    """Prints the table; raises ClaimFailedError if a claim does not hold."""
    from tfmirror.diagnostics import verification
    from tfmirror.parallel import devices

    chosen = devices.choose(num_gpus(settings, devices), settings.device_type)
    # As a training run of so many fixed microbatches has it, with --deterministic.
    devices.use_one_thread_per_op(chosen, verification.NUM_MICROBATCHES)
    if not chosen.are_stand_ins:
        devices.use_deterministic_operations()
    print(f"model: {settings.model}\ndevices: {chosen.describe()}", flush=True)
    outcomes = verify(settings, replica_counts(chosen.num_replicas), verification)
    print_table(outcomes, verification.CLAIMS)
    try:
        if settings.json_file:
            write_json(settings.json_file, table_rows(outcomes, verification.CLAIMS))
    finally:  # what does not hold is said in any case
        check_outcomes(outcomes)
    print(f"all {len(verification.CLAIMS)} claims hold")


def num_gpus(settings, devices):
    """Returns how many devices to verify.

    Raises:
      InputError: there is one GPU, with nothing to compare it to.
    """
    found = settings.gpus or devices.count_gpus(settings.device_type) or MOST
    if found == 1:
        raise errors.InputError(
            "gpus must be at least 2, to be compared with one: got 1, all there are; "
            "--device_type=cpu takes logical CPU devices"
        )
    return min(found, MOST)


def write_json(path, rows):
    """Writes the rows of the table as the JSON file `path`: whole, or not at all."""
    from tfmirror.rundir import checkpoints

    path = errors.check_new_file("json_file", path)
    checkpoints.write_file(path, (json.dumps(rows, indent=2) + "\n").encode())


def check_outcomes(outcomes):
    """Raises ClaimFailedError if a claim does not hold."""
    failed = [
        f"{claim} on {n} replicas {outcome.text}"
        for n, of_n in outcomes.items()
        for claim, outcome in of_n.items()
        if not outcome.is_met
    ]
    if failed:
        raise errors.ClaimFailedError("; ".join(failed))


def print_table(outcomes, claims):
    """Prints a row for each claim, and a column for each number of replicas."""
    from rich import box, console, table

    columns = [f"N = {n}" for n in outcomes]
    grid = table.Table("claim", "promised", *columns, box=box.SIMPLE)
    for claim, tolerance in claims.items():
        cells = [outcomes[n][claim] for n in outcomes]
        marked = [c.text if c.is_met else f"FAILS: {c.text}" for c in cells]
        grid.add_row(claim, promise(tolerance), *marked)
    output = console.Console()
    if not output.is_terminal:
        output = console.Console(width=120)
    with output.capture() as rendered:
        output.print(grid)
    print(rendered.get(), end="")


def replica_counts(most):
    """Returns the numbers of replicas to compare with one: powers of two and `most`."""
    powers = [n for n in (2, 4, 8) if n < most]
    return [*powers, most]


def promise(tolerance):
    """Returns what is promised of a claim, for the table."""
    return "same bits" if tolerance == 0 else f"within {tolerance:.0e}"


def verify(settings, counts, verification):
    """Returns {N: {claim: Outcome}} against one replica."""
    one = verification.observe(1, settings.model, settings.device_type)
    outcomes = {}
    for n in counts:
        seen = verification.observe(n, settings.model, settings.device_type)
        outcomes[n] = {
            claim: verification.compare(one[claim], seen[claim], tolerance)
            for claim, tolerance in verification.CLAIMS.items()
        }
    return outcomes


def table_rows(outcomes, claims):
    """Returns the table as plain values for JSON."""
    return [
        {
            "claim": claim,
            "tolerance": tolerance,
            "replicas": {
                str(n): {"is_met": of_n[claim].is_met, "outcome": of_n[claim].text}
                for n, of_n in outcomes.items()
            },
        }
        for claim, tolerance in claims.items()
    ]


if __name__ == "__main__":
    command.run(
        main, command_config.VerifyConfig, __doc__, check=command_config.check_verify
    )
