"""The network of the settings."""

from __future__ import annotations

from anomalyncd.config import make_config
from anomalyncd.regions.network import make_encoder, make_vit


def test_the_settings_say_which_network_looks_and_at_what() -> None:
    model = {"backbone": "tiny", "image_size": 64, "keep_thin": False}
    config = make_config({"device": "cpu", "model": model, "batch_size": 3})
    vit = make_vit(config)
    assert not vit.training and not vit.keep_thin and {p.device.type for p in vit.parameters()} == {"cpu"}
    encoder = make_encoder(vit, config, scenes=True)
    assert encoder.scenes and encoder.batch_size == 3 and encoder.input_size == config.model.input_size
    assert not make_encoder(vit, config).scenes
