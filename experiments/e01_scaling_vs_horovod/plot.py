"""Draws throughput, share of the ideal and bytes on the wire over VMs; reads rows only."""

from pathlib import Path
from typing import Any

from experiments._shared.grid import intervals
from experiments._shared.published import compared
from experiments._shared.record import read_rows
from experiments._shared.stats import Interval
from experiments._shared.style import (
    axis_labels,
    draw_intervals,
    draw_published,
    legend,
    new_figure,
    power_of_two_axis,
    save,
    spread_note,
)

PUBLISHED = Path(__file__).resolve().parent / "published.csv"
LABELS = {
    "ideal": "ideal: no communication",
    "kf": "ours, multi_binary_tree_star",
    "kf_ring": "ours, ring",
    "horovod_tuned": "Horovod, tuned",
    "horovod_untuned": "Horovod, as measured for KungFu",
}
MODELS = {
    "resnet50": "ResNet-50, batch 32",
    "mobilenet_v2": "MobileNetV2, batch 32",
    "vgg16": "VGG-16, batch 32",
    "bert_base": "BERT-base, batch 8",
}
TABLE_VMS = (1, 8, 32, 128, 512)
RATE, SENT = "throughput_samples_per_s", "sent_bytes_per_step"


def _scaled(points: dict[int, Interval], factor: dict[int, float]) -> dict[int, Interval]:
    return {
        n: Interval(p.median * factor[n], p.low * factor[n], p.high * factor[n], p.count)
        for n, p in points.items()
    }


def _share(rows: list[dict[str, Any]], model: str, system: str) -> dict[int, Interval]:
    """Throughput in per cent of the median of the ideal."""
    ideal = intervals(rows, "vms", RATE, model=model, system="ideal")
    rate = intervals(rows, "vms", RATE, model=model, system=system)
    return _scaled(rate, {n: 100 / ideal[n].median for n in rate})


def plot(rows_path: Path, out: Path) -> list[Path]:
    """ResNet-50 in three panels beside the published points; then the share for each model."""
    rows = read_rows(rows_path)
    note = spread_note(len({row["repeat"] for row in rows}))
    return [*_draw_resnet(rows, note, out), *_draw_models(rows, note, out)]


def _draw_resnet(rows: list[dict[str, Any]], note: str, out: Path) -> list[Path]:
    figure, [total, share, sent] = new_figure(1, 3, width_in=11.0, height_in=3.8)
    for system, label in LABELS.items():
        rate = intervals(rows, "vms", RATE, model="resnet50", system=system)
        draw_intervals(total, system, rate, label=label)
        draw_intervals(share, system, _share(rows, "resnet50", system), label=label)
        if system != "ideal":
            sizes = intervals(rows, "vms", SENT, model="resnet50", system=system)
            draw_intervals(sent, system, _scaled(sizes, dict.fromkeys(sizes, 1e-6)))
    for point in read_rows(PUBLISHED):
        label = f"published, {point['role']}"
        series, vms = point["system"], point["vms"]
        draw_published(
            total, series, vms, point[RATE], point["spread_samples_per_s"], label=label
        )
        draw_published(share, series, vms, point["efficiency_percent"], point["spread_percent"])
    total.set_yscale("log")
    for axes, name, better in (
        (total, "throughput (samples/s, total)", "higher"),
        (share, "throughput (% of ideal)", "higher"),
        (sent, "sent by one VM a step (MB)", "lower"),
    ):
        power_of_two_axis(axes)
        axis_labels(axes, "VMs (one GPU each)", name, better=better)
    share.set_ylim(0, 105)
    sent.set_ylim(bottom=0)
    legend(total, "upper left")
    figure.suptitle(f"ResNet-50, batch 32 a VM, simulated ({note})", fontsize=10)
    return save(figure, out / "figure")


def _draw_models(rows: list[dict[str, Any]], note: str, out: Path) -> list[Path]:
    figure, panels = new_figure(1, len(MODELS), width_in=11.0, height_in=3.4)
    for axes, (model, name) in zip(panels, MODELS.items(), strict=True):
        for system, label in LABELS.items():
            if system != "ideal":
                draw_intervals(axes, system, _share(rows, model, system), label=label)
        power_of_two_axis(axes)
        axis_labels(axes, "VMs", "throughput (% of ideal)", better="higher")
        axes.set_ylim(0, 105)
        axes.set_title(name, fontsize=9)
    legend(panels[1], "lower left")
    figure.suptitle(f"Share of the ideal, simulated ({note})", fontsize=10)
    return save(figure, out / "figure_models")


def table(rows_path: Path) -> list[dict[str, Any]]:
    """Throughput, share of ideal and bytes sent, at some sizes, beside the published points."""
    rows = read_rows(rows_path)
    published = {(p["system"], p["vms"]): p for p in read_rows(PUBLISHED)}
    lines = []
    for model in MODELS:
        for system in LABELS:
            rate = intervals(rows, "vms", RATE, model=model, system=system)
            share = _share(rows, model, system)
            sent = intervals(rows, "vms", SENT, model=model, system=system)
            for vms in (n for n in rate if n in TABLE_VMS):
                point = published.get((system, vms), {}) if model == "resnet50" else {}
                spread = 50 * (rate[vms].high - rate[vms].low) / rate[vms].median
                lines.append(
                    {
                        "model": model,
                        "system": system,
                        "VMs": vms,
                        "samples/s": rate[vms].median,
                        "+- (%)": round(spread, 2),
                        "of ideal (%)": share[vms].median,
                        "sent (MB/VM/step)": sent[vms].median / 1e6,
                        "published": point.get(RATE),
                        "published is": point.get("role"),
                    }
                )
    return lines


def numbers(rows_path: Path) -> dict[str, float]:
    """What the report quotes: shares of the ideal, rates a GPU, and the published ones."""
    rows = read_rows(rows_path)
    found: dict[str, float] = {}
    for model in MODELS:
        for system in LABELS:
            for vms, point in _share(rows, model, system).items():
                found[f"{model}_{system}_{vms}_share_percent"] = point.median
    for system in LABELS:
        rate = intervals(rows, "vms", RATE, model="resnet50", system=system)
        for vms in (n for n in (32, 128, 512) if n in rate):
            found[f"{system}_{vms}_samples_per_s_per_gpu"] = rate[vms].median / vms
    for point in read_rows(PUBLISHED):
        mine = found[f"{point['system']}_32_samples_per_s_per_gpu"]
        theirs = point[RATE] / point["vms"]
        found[f"published_{point['system']}_samples_per_s_per_gpu"] = theirs
        found[f"difference_{point['system']}_percent"] = 100 * (mine / theirs - 1)
    return found


def published(rows_path: Path) -> list[dict[str, Any]]:
    """Figure 9's points at 32 VMs, and ours."""
    uses = {"to compare": "compared", "fitted": "fitted", "other set-up": "other set-up"}
    found = numbers(rows_path)
    lines, theirs = [], {}
    for point in read_rows(PUBLISHED):
        system = point["system"]
        theirs[system] = point[RATE] / point["vms"]
        other = point["role"] == "other set-up"
        lines.append(
            compared(
                "BatchAI benchmark" if other else "KungFu, Figure 9",
                f"{LABELS[system].removeprefix('ours, ')}, {point['vms']} VMs",
                "images/s, one GPU",
                theirs[system],
                found[f"{system}_32_samples_per_s_per_gpu"],
                use=uses[point["role"]],
                why="four GPUs share a VM and its card, batch 64" if other else "",
            )
        )
    ours = [found[f"{s}_32_samples_per_s_per_gpu"] for s in ("kf", "horovod_untuned")]
    lines.append(
        compared(
            "KungFu, Figure 9",
            "KungFu over Horovod, 32 VMs",
            "ratio",
            theirs["kf"] / theirs["horovod_untuned"],
            ours[0] / ours[1],
        )
    )
    return lines
