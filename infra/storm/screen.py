"""What a storm tells the person who started it."""

from collections.abc import Sequence

from schemas.storm import StormReport


def show(report: StormReport, *, again: str) -> str:
    """Faults by kind, counts, recovery medians, breaches.

    Args:
        again: The command that repeats this storm.
    """
    rows = [("fault", "injected", "survived")]
    rows += [
        (str(kind), str(count.injected), str(count.survived))
        for kind, count in sorted(report.faults.items())
    ]
    total = sum(count.injected for count in report.faults.values())
    survived = sum(count.survived for count in report.faults.values())
    rows.append(("all", str(total), str(survived)))
    lines = ["", *_table(rows), ""]
    lines += _pairs(
        [
            ("kills", report.kills),
            ("generated", report.generated),
            ("trained", report.trained),
            ("lost", report.lost),
            ("trained twice", report.trained_twice),
            ("ledger off by", report.ledger_imbalance),
            ("dead letters", report.dead_letters),
            ("  unexplained", report.unexplained_dead_letters),
            ("lengths, KS p", "not measured" if report.ks_p is None else f"{report.ks_p:.4f}"),
            ("tokens repeated", report.tokens_repeated),
        ]
    )
    lines += ["", "median seconds from fault to work flowing again"]
    lines += _pairs(
        [
            (f"  {who}", "not measured" if value is None else f"{value:.1f}")
            for who, value in report.recovery_seconds.items()
        ]
    )
    lines += ["", f"again: {again}"]
    if report.breaches:
        lines += ["", f"{len(report.breaches)} BREACHES"]
        lines += [f"  {breach}" for breach in report.breaches]
    else:
        lines += ["", "the run stood: no breach"]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[tuple[str, str, str]]) -> list[str]:
    return [f"  {name:<18}{injected:>9}{survived:>10}" for name, injected, survived in rows]


def _pairs(pairs: Sequence[tuple[str, object]]) -> list[str]:
    return [f"  {name:<18}{value:>19}" for name, value in pairs]


def say(text: str) -> None:
    """To the screen, at once."""
    print(text, flush=True)
