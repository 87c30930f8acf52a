//! Opens proxies and breaks their connections as told on standard input; see `oncewire_proxy::control`.

use std::io;

use tokio::io::BufReader;

#[tokio::main]
async fn main() -> io::Result<()> {
    oncewire_proxy::control::serve(BufReader::new(tokio::io::stdin()), tokio::io::stdout()).await
}
