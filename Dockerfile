# The harness on CPUs, with the versions of requirements-image.lock:
#
#     docker build --tag replicator-harness .
#     docker run --rm --volume "$PWD/runs:/srv/harness/runs" replicator-harness \
#       sweep --workload resnet50
#
# docs/ci.md explains users, volumes and other base images.
ARG BASE=python:3.12-slim-bookworm

# What the dev container has as well: tools and a user, no Python packages.
FROM ${BASE} AS tools
# git for `gate`, make for contributors, OpenGL for D4PG from pixels.
# hadolint ignore=DL3008
RUN apt-get update \
  && apt-get install --yes --no-install-recommends git libegl1 libgl1-mesa-dri make \
  && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 1000 harness

FROM tools AS packages
WORKDIR /opt/replicator-harness
COPY requirements-image.lock ./
# In an environment of its own, so that the interpreter of the base stays as it is.
RUN python3 -m venv /opt/venv \
  && /opt/venv/bin/python -m pip install --no-cache-dir --disable-pip-version-check \
    --no-deps --require-hashes --requirement requirements-image.lock
COPY pyproject.toml README.md LICENSE ./
COPY replicator replicator
COPY workloads workloads
COPY harness harness
COPY results results
COPY reports reports
# The lock is complete and has setuptools, so nothing is resolved or downloaded.
RUN /opt/venv/bin/python -m pip install --no-cache-dir --disable-pip-version-check \
    --no-deps --no-build-isolation --editable .

FROM packages
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1
# Made here, so that a new volume of this name belongs to the user.
RUN install --directory --owner harness --group harness /srv/harness/runs
# By number, so that a cluster can see that it is not root.
USER 1000:1000
WORKDIR /srv/harness
ENTRYPOINT ["python", "-m", "harness"]
CMD ["--help"]
