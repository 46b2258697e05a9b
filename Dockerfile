# Builds pliant from this checkout: docker build -t pliant .
# For a coordinator alone, which needs no torch: docker build --build-arg EXTRAS= -t pliant-coordinator .
FROM python:3.12-slim AS wheel
RUN pip install --no-cache-dir build==1.6.1
ARG VERSION=0.1.0.dev0
ENV SETUPTOOLS_SCM_PRETEND_VERSION=$VERSION
COPY . /src
RUN python -m build --wheel --outdir /dist /src

FROM python:3.12-slim
ARG EXTRAS=[engine]
COPY constraints.txt /tmp/constraints.txt
COPY --from=wheel /dist /dist
# hadolint ignore=DL3013
RUN pip install --no-cache-dir -c /tmp/constraints.txt "$(ls /dist/*.whl)$EXTRAS" && rm -r /dist /tmp/constraints.txt
RUN useradd --uid 1000 --create-home pliant
USER 1000
WORKDIR /home/pliant
ENTRYPOINT ["pliant"]
CMD ["--help"]
