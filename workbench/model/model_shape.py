"""The shape of a decoder model: what its layers keep in the KV cache, and how many weights each
part has."""

from __future__ import annotations

from workbench.model.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class KvLayers:
    """A group of layers that store equally much in the KV cache.

    Tensor parallelism divides the KV heads. A single head, as in latent attention (MLA), is copied
    to each GPU instead.
    """

    count: int
    heads: int
    values: int  # numbers per token and head, keys and values together
    window: int | None = None  # tokens that a sequence keeps; None: all
    # A state layer (Mamba, linear attention) keeps a state per sequence, whatever its length;
    # `values` is then 0. Bytes of the newest inputs, numbers in the matrix, and bits of such a
    # number if the model says it.
    state_bytes: int = 0
    state_values: int = 0
    state_bits: int | None = None
    mamba2: bool = False

    @property
    def keeps_state(self) -> bool:
        """Whether these layers keep a state for each sequence, and no keys and values for each
        token."""
        return bool(self.state_bytes or self.state_values)

    def state_size_bytes(self, bits: int | None = None) -> float:
        """Return the bytes of one state. `bits` is the size of a number in the matrix that the
        engine is told to use; None means that of the model, else 16."""
        return self.state_bytes + self.state_values * (bits or self.state_bits or 16) / 8


@dataclass(frozen=True, slots=True)
class WeightParts:
    """The number of weights in each part of a model, such as the routed experts, the output matrix
    and the embedding."""

    dense: float  # read for each token: attention, feed-forward layers, shared experts, routers
    experts: float = 0.0  # routed experts, all of them
    expert_share: float = 1.0  # of the routed experts that one token uses, such as 8/128
    head: float = 0.0  # the output matrix; 0 if the embedding serves as one
    # one row is read for each token, or all of it if it serves as the output matrix
    embedding: float = 0.0
    other: float = 0.0  # vision or audio encoder, read only for the prompt

    @property
    def total_weight_count(self) -> float:
        return self.dense + self.experts + self.head + self.embedding + self.other

    @property
    def active_weight_count(self) -> float:
        """The number of the model's weights that take part in the computation of one token."""
        return self.dense + self.experts * self.expert_share + self.output_matrix_weight_count

    @property
    def output_matrix_weight_count(self) -> float:
        """The number of weights of the model's output matrix. If the model has no separate output
        matrix, the embedding serves as one."""
        return self.head or self.embedding


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The shape of a decoder model. Sizes that are unknown are None, () or 0."""

    kv: tuple[KvLayers, ...] = ()
    kv_missing: str = ""  # why `kv` is ()
    parts: WeightParts | None = None
    layers: int | None = None
    hidden: int | None = None
    feed_forward: int | None = None  # width of the widest feed-forward layer of one token
    vocabulary: int | None = None
    max_length: int | None = None  # tokens
