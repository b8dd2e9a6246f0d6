"""What a model costs, before anyone trains it: the bytes that a rank holds, and the FLOPs of a token.

Tests compare the bytes with what `helpers.instruments.memory` counts in real ranks, and the FLOPs with torch's counter.
"""

from typing import NamedTuple

STAGES = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")


def block_parameters(width):
    """Parameters of a block: four projections, two layers of 4 · width, two norms; with biases."""
    return 12 * width**2 + 13 * width


def parameters(width, layers, vocabulary, length):
    """Parameters of a `GPT`."""
    embeddings, norm, head = (vocabulary + length) * width, 2 * width, (width + 1) * vocabulary
    return embeddings + layers * block_parameters(width) + norm + head


def states(parameters, ranks, stage):
    """Bytes that one rank holds of a model in float32 under AdamW, by kind; pieces are rounded up.

    DDP's gradients lie in its buckets, as with `gradient_as_bucket_view`; else its buckets take as much again.

    Source: Rajbhandari et al., 2019, https://arxiv.org/abs/1910.02054, section 5.
    """
    number, piece = STAGES.index(stage), -(-parameters // ranks)
    return {kind: size * (piece if number >= since else parameters)
            for kind, since, size in (("parameters", 3, 4), ("gradients", 2, 4), ("optimizer", 1, 8))}


def activations(width, layers, heads, vocabulary, length, batch, checkpointing=False):
    """Bytes that forward keeps for backward: with checkpointing, each block's input, and one block whole."""
    block = 16 * width + 4 + heads
    kept = layers * width + block if checkpointing else layers * block
    return 4 * batch * length * (kept + 2 * width + 2 + vocabulary)


class Shape(NamedTuple):
    """A decoder whose feed-forward nets have a gate, such as Llama's: three matrices of width × hidden."""

    layers: int
    width: int
    hidden: int
    vocabulary: int
    tied: bool
    """Whether the last layer shares its weights with the embedding."""
    keys: float = 1
    """Heads of keys over heads of queries, as many for values: 1/8 where eight queries share one of each."""

    @property
    def layer(self):
        """Parameters of one layer, norms aside."""
        return 2 * (1 + self.keys) * self.width**2 + 3 * self.width * self.hidden

    @property
    def head(self):
        """Parameters of the layer that scores the vocabulary."""
        return self.vocabulary * self.width

    @property
    def parameters(self):
        """All of them, norms aside."""
        return self.layers * self.layer + self.head * (2 - self.tied)

    def flops(self, length):
        """FLOPs of one token, forward and backward: 6 for a matrix's weight, and attention over `length`.

        Source: https://arxiv.org/abs/2204.02311, appendix B. Checkpointing's second forward does not count.
        """
        matrices = self.layers * self.layer + self.head  # looking up an embedding multiplies nothing
        return 6 * matrices + 12 * self.layers * self.width * length
