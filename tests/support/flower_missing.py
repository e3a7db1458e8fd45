"""What the extra ``flower`` has and this environment lacks."""

import importlib.util

MISSING = [name for name in ("flwr", "ray", "cryptography") if importlib.util.find_spec(name) is None]
