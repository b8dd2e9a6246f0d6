"""Pictures of what lesson 07 has measured."""

from lessons.mixed_precision.loss_scale_explorer import HIGH, LOW, ZONES, histogram, in_words


def draw_gradients(ax, gradients, log2_scale=0):
    """Draw a histogram of `gradients` times 2**log2_scale, and what fp16 makes of it."""
    bars, said = histogram(gradients), in_words(gradients, log2_scale)
    for zone, (low, high, colour) in ZONES.items():
        heights = [100 * bars.get(power - log2_scale, 0) for power in range(low, high)]
        ax.stairs(heights, range(low, high + 1), fill=True, color=colour, label=f"{zone}: {said[zone]}")
        ax.axvspan(low, high, color=colour, alpha=0.1, lw=0)
    ax.set(xlim=(LOW, HIGH), ylim=(0, 108 * max(bars.values())), ylabel="% of the gradients",
           xlabel="size of a gradient times the scale")
    ax.set_xticks(range(LOW, HIGH, 12), [f"2^{power}" for power in range(LOW, HIGH, 12)])
    ax.locator_params(axis="y", nbins=4)
    ax.set_title(f"Gradients in fp16, scale 2^{log2_scale} = {2**log2_scale:,}")
    ax.legend(loc="upper left")
    listed = ", ".join(f"{zone}: {share}" for zone, share in said.items())
    ax.figure.set_label(f"Histogram of gradients times 2 to the {log2_scale}. In fp16: {listed}.")
