"""Proves on your own devices that N replicas do what one does, claim by claim.

python -m tfmirror.verify --gpus=8
python -m tfmirror.verify --gpus=4 --model=cnn --json_file=verified.json

Each cell says whether so many replicas gave the same bits as one, or by how much the
largest entry differs. Exit code 4 if a claim does not hold.
"""

from tfmirror import command, command_config, config

MOST = command_config.MOST_REPLICAS_TO_VERIFY


def main(settings):
    """Prints the table; raises ClaimFailedError if a claim does not hold."""
    from tfmirror.parallel import devices, verification
    from tfmirror.training import writers

    check_json_file(settings.json_file)
    num_gpus = settings.gpus or devices.count_gpus(settings.device_type)
    num_gpus = min(num_gpus or MOST, MOST)
    chosen = devices.choose(num_gpus, settings.device_type)
    # As a training run of so many fixed microbatches has it.
    devices.keep_operations_apart(chosen, verification.NUM_MICROBATCHES)
    print(f"model: {settings.model}\ndevices: {chosen.describe()}", flush=True)
    outcomes = verify(settings, replica_counts(num_gpus), verification)
    print_table(outcomes, verification.CLAIMS)
    if settings.json_file:
        path = config.expand_path("json_file", settings.json_file)
        writers.write_json(path, table_rows(outcomes, verification.CLAIMS))
    failed = [
        f"{claim} on {n} replicas {outcome.text}"
        for n, of_n in outcomes.items()
        for claim, outcome in of_n.items()
        if not outcome.is_met
    ]
    if failed:
        raise config.ClaimFailedError("; ".join(failed))
    print(f"all {len(verification.CLAIMS)} claims hold")


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
    output.print(grid)


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


def check_json_file(path):
    """Raises InputError, before a minute is spent, if the file has no folder."""
    folder = config.expand_path("json_file", path).parent
    config.require(folder.is_dir(), "json_file", path, "in a folder that is there")


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
