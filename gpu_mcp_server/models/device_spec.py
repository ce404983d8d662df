"""Peak rates of a device, from its vendor's documents."""

from pydantic import Field

from gpu_mcp_server.models._base import Model


class SpecSource(Model):
    """A text in which figures stand."""

    title: str
    url: str
    date: str
    """Of the text, as far as it says."""
    read: str
    """When it was read for these figures."""
    figures: list[str] = Field(min_length=1)
    """What was taken from it: dram_gb_s, cache_mib, or a type of tflop_s."""
    taken: str = Field(alias="for")
    """What it says, where that differs from what stands here: sparsity, both dies, rounding, what was computed."""


class DeviceSpec(Model):
    """Peak figures of one device."""

    name: str
    names: list[str] = Field(min_length=1)
    """What the driver calls it."""
    dram_gb_s: float = Field(gt=0)
    cache_mib: float = Field(gt=0)
    """The largest cache before the memory."""
    tflop_s: dict[str, float] = Field(min_length=1)
    """Dense peaks by type; `_tensor` with tensor or matrix cores."""
    sources: list[SpecSource] = Field(min_length=1)
    not_seen: list[str] = []
    """Figures whose text was not read: the vendor's data sheet is said to have them."""

    def fastest(self) -> float:
        """Return the highest peak of any type, in TFLOP/s."""
        return max(self.tflop_s.values())

    def peak_of(self, dtype: str, *, strict: bool) -> tuple[str, float] | None:
        """Return the peak for a type and its name; TF32 counts for float32 unless precision is strict."""
        names = [f"{dtype}_tensor", dtype]
        if dtype == "float32" and not strict:
            names = ["tf32_tensor", *names]
        known = [(name, self.tflop_s[name]) for name in names if name in self.tflop_s]
        return max(known, key=lambda pair: pair[1]) if known else None
