"""What we use of wandb that is not public: here alone, each name with the version in which it was read."""

PRIVATE = dict.fromkeys(("wandb.sdk.lib.wbauth.read_netrc_auth", "wandb.sdk.lib.wbauth.check_api_key"), "0.31.0")
"""Held by tests/test_private_names.py."""


def key_of_login() -> str | None:
    """The key that `wandb login` has left for the server in use, whichever of its names it was left under."""
    import wandb
    from wandb.sdk.lib import wbauth

    return wbauth.read_netrc_auth(host=wandb.setup().settings.base_url)


def fault_of_key(key: str) -> str | None:
    """What is wrong with the form of a key; None for nothing."""
    from wandb.sdk.lib import wbauth

    return wbauth.check_api_key(key)
