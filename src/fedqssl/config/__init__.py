"""What a run is told: typed, frozen settings with the same words in TOML, on the command line and in Python."""

from fedqssl.config.load import load_config, load_run_config, to_toml
from fedqssl.config.presets import PRESETS, Preset
from fedqssl.config.schema import ConfigError, RunConfig

__all__ = ["PRESETS", "ConfigError", "Preset", "RunConfig", "load_config", "load_run_config", "to_toml"]
