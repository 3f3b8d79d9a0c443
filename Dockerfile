# The harness, with the versions of requirements.lock:
#
#     docker build --tag replicator-harness .
#     docker run --rm --volume "$PWD/runs:/srv/harness/runs" replicator-harness \
#       sweep --workload resnet50
#
# On NVIDIA GPUs, requirements-gpu.lock adds CUDA, cuDNN and NCCL; the host needs the
# driver and the NVIDIA container toolkit:
#
#     docker build --build-arg DEVICE=gpu --tag replicator-harness-gpu .
#     docker run --rm --gpus all --shm-size 1g --volume "$PWD/runs:/srv/harness/runs" \
#       replicator-harness-gpu sweep --workload resnet50 --device gpu
#
# The volume also keeps what the driver compiles for GPUs that TensorFlow has no machine
# code for. To have that done once, and see it, run the image with --entrypoint python
# and the command -m harness.doctor.gpu.
#
# docs/ci.md explains users, volumes and other base images.
ARG BASE=python:3.12-slim-bookworm
ARG DEVICE=cpu

# What the dev container has as well: tools and a user, no Python packages.
FROM ${BASE} AS tools
# git for `gate`, make for contributors, OpenGL for D4PG from pixels.
# hadolint ignore=DL3008
RUN apt-get update \
  && apt-get install --yes --no-install-recommends git libegl1 libgl1-mesa-dri make \
  && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 1000 harness

FROM tools AS packages-cpu
WORKDIR /opt/replicator-harness
COPY requirements.lock ./
# In an environment of its own, so that the interpreter of the base stays as it is.
RUN python3 -m venv /opt/venv \
  && /opt/venv/bin/python -m pip install --no-cache-dir --disable-pip-version-check \
    --no-deps --require-hashes --requirement requirements.lock

FROM packages-cpu AS packages-gpu
COPY requirements-gpu.lock ./
RUN /opt/venv/bin/python -m pip install --no-cache-dir --disable-pip-version-check \
    --no-deps --require-hashes --requirement requirements-gpu.lock

# hadolint ignore=DL3006
FROM packages-${DEVICE}
WORKDIR /opt/replicator-harness
COPY pyproject.toml README.md LICENSE ./
COPY replicator replicator
COPY workloads workloads
COPY harness harness
COPY results results
COPY reports reports
# The locks are complete and have setuptools, so nothing is resolved or downloaded.
RUN /opt/venv/bin/python -m pip install --no-cache-dir --disable-pip-version-check \
    --no-deps --no-build-isolation --editable .
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    CUDA_CACHE_MAXSIZE=4294967296 \
    CUDA_CACHE_PATH=/srv/harness/runs/.cuda-cache \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
# Made here, so that a new volume of this name belongs to the user.
RUN install --directory --owner harness --group harness /srv/harness/runs
# By number, so that a cluster can see that it is not root.
USER 1000:1000
WORKDIR /srv/harness
ENTRYPOINT ["python", "-m", "harness"]
CMD ["--help"]
