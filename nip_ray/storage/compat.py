"""All uses of non-public wandb names, each with the version in which it was read."""

PRIVATE = dict.fromkeys(("wandb.sdk.lib.wbauth.read_netrc_auth", "wandb.sdk.lib.wbauth.check_api_key"), "0.31.0")
"""Held by tests/test_private_names.py."""


def key_of_login() -> str | None:
    """The key that `wandb login` has stored for the server in use, under any of its names."""
    import wandb
    from wandb.sdk.lib import wbauth

    return wbauth.read_netrc_auth(host=wandb.setup().settings.base_url)


def fault_of_key(key: str) -> str | None:
    """The fault in the form of a key; None if there is none."""
    from wandb.sdk.lib import wbauth

    return wbauth.check_api_key(key)
