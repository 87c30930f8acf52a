# Built from the repository's root: docker build -t oncewire .
FROM rust:1-slim-bookworm AS build
WORKDIR /source
COPY . .
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && cargo build --release --locked --package oncewire

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates curl \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --no-create-home oncewire \
    && install --directory --owner oncewire --mode 0700 /data
COPY --from=build /source/target/release/oncewire /usr/local/bin/oncewire
USER oncewire
EXPOSE 8080 8443
# Sessions and messages. Without a volume of its own they go with the container.
VOLUME /data
# The access key comes in as ONCEWIRE_ACCESS_KEY, at least 32 bytes.
ENV ONCEWIRE_LISTEN=0.0.0.0:8080 ONCEWIRE_TLS_LISTEN=0.0.0.0:8443 ONCEWIRE_DATA_DIR=/data
# A start that has much to read from the disk takes its time, and is not ill.
HEALTHCHECK --start-period=10m --interval=10s --timeout=3s CMD ["curl", "--fail", "--silent", "--head", "http://127.0.0.1:8080/api/health"]
ENTRYPOINT ["oncewire"]
CMD ["serve"]
