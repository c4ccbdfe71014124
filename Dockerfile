# An image that nodes start from at once, instead of installing at every start: docs/cluster.md.
#
#   docker build -t REGISTRY/nip-ray:0.2.0 .
#   docker build -t REGISTRY/nip-ray:0.2.0-gpu --build-arg BASE=rayproject/ray:2.60.0-py311-gpu --build-arg TORCH_INDEX=https://pypi.org/simple .
#
# Programs of models (scripts/create_cv_dataset.py) run isolated by bwrap, which is not in here: install bubblewrap, and have the container
# allow new namespaces, as docs/sandbox.md describes.
#
# No secret belongs in an image: keys and tokens are given to containers, by the environment.
ARG BASE=rayproject/ray:2.60.0-py311
FROM ${BASE}

# From PyPI torch brings CUDA along, gigabytes that a machine without a GPU has no use for. A layer of its own: it seldom changes.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir 'torch>=2.9,<2.16' --index-url ${TORCH_INDEX}

WORKDIR /home/ray/nip_ray
COPY --chown=1000:100 pyproject.toml README.md LICENSE ./
COPY --chown=1000:100 nip_ray ./nip_ray
COPY --chown=1000:100 examples ./examples
COPY --chown=1000:100 tune_configs ./tune_configs
COPY --chown=1000:100 scripts ./scripts
ARG EXTRAS=ray,text,tracking
RUN pip install --no-cache-dir ".[${EXTRAS}]" && nip-ray --version

# Every Ray in this image asks for a token. A single container makes one of its own, a cluster gives its nodes the same one.
ENV RAY_AUTH_MODE=token \
    RAY_USAGE_STATS_ENABLED=0
USER 1000:100
CMD ["nip-ray", "--help"]
