"""What training keeps for each parameter: weights, gradients and Adam's moments, by the precision of the weights.

| weights | bytes a parameter | σ |
|---|---|---|
| 32 bits | 4 weights + 4 gradients + 8 moments | 4 |
| 16 bits | 2 weights + 2 gradients + 4 master weights + 8 moments | 8 |
| 8 bits | 1 weights + 1 gradients + 4 master weights + 8 moments | 14 |

Weights of fewer than 32 bits have master weights and moments in float32, as mixed-precision training keeps them
(Micikevicius et al., arXiv 1710.03740; ZeRO counts the same 16 bytes, arXiv 1910.02054, section 3.1). A framework that
also adds up gradients in float32 needs two bytes more.
"""

from __future__ import annotations

from automap_models.core.profile import Profile

DEFAULT_STATE_FACTOR = 4.0
"""σ of a profile that does not say its precision, and of one in float32."""
_SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}


def default_state_factor(profile: Profile) -> float:
    """σ, bytes of training state a byte of parameters, of Adam at the precision of the profile's parameters."""
    element = profile.element_bytes
    if element is None or element >= 4:
        return DEFAULT_STATE_FACTOR
    return (2 * element + 12) / element  # master weights and moments


def state_in_words(profile: Profile, state_factor: float) -> str | None:
    """`16 bytes a parameter (bf16 weights and gradients, fp32 master weights and Adam's moments)`.

    None where it is what everybody expects: fp32, or a precision that the profile does not say, with Adam.
    """
    if state_factor == DEFAULT_STATE_FACTOR and profile.element_bytes in {None, 4}:
        return None
    element, dtype = profile.element_bytes, str(profile.meta.get("parameter_dtype"))
    short = _SHORT.get(dtype, dtype)
    if element is None:
        return f"{state_factor:g} bytes for each byte of parameters; the profile does not say their precision"
    count = f"{state_factor * element:g} bytes a parameter"
    if state_factor != default_state_factor(profile):
        return f"{count} ({short}), {state_factor:g} times its weights"
    if element >= 4:
        return f"{count} ({short} weights, gradients and Adam's moments)"
    return f"{count} ({short} weights and gradients, fp32 master weights and Adam's moments)"
