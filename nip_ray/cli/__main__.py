"""`python -m nip_ray.cli`, for where the script `nip-ray` is not on the path."""

from nip_ray.cli import main

if __name__ == "__main__":
    main()
