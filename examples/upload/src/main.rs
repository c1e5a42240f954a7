//! A server that receives files, and a client that sends one.
//!
//! ```sh
//! cargo run -p courser-example-upload serve udp://127.0.0.1:31850 /tmp
//! cargo run -p courser-example-upload send udp://127.0.0.1:31850 Cargo.lock
//! ```

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use courser::Server;
use courser_example_upload::{CHUNK, Directory, FilesClient, FilesServer, Uploads};
use tokio::fs::File;
use tokio::io::AsyncReadExt;
use xxhash_rust::xxh3::Xxh3;

/// Largest file, bytes.
const LIMIT: u64 = 16 << 30;

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", uri, directory] => {
            // Handlers write files, so they run on the server's own workers, and not on tokio.
            let uploads = Uploads::new(Directory(directory.into()), LIMIT);
            let server = Server::bind(uri)?.on_workers().add_service(FilesServer::new(uploads))?;
            let (uri, serving) = (server.local_uri(), server.serve()?);
            println!("serving {uri}");
            serving.await?;
            Ok(())
        }
        ["send", uri, path] => send(&FilesClient::connect(uri).await?, path.as_ref()).await,
        _ => bail!("usage: upload serve URI DIRECTORY | upload send URI FILE"),
    }
}

async fn send(files: &FilesClient, path: &Path) -> Result<()> {
    let name = path.file_name().and_then(|name| name.to_str()).context("the file has no name")?;
    let mut file = File::open(path).await.with_context(|| format!("cannot read {path:?}"))?;
    let mut upload = files.upload(name.to_owned()).await?;
    let mut hash = Xxh3::new();
    // After an error of the server no more chunks are wanted; `finish` returns the error.
    while !upload.has_ended() {
        let mut chunk = Vec::with_capacity(CHUNK);
        if file.read_buf(&mut chunk).await? == 0 {
            break;
        }
        hash.update(&chunk);
        // Waits while the server is slower.
        upload.send(&chunk).await?;
    }
    let summary = upload.finish().await?;
    ensure!(summary.hash == hash.digest(), "the server has stored other bytes");
    println!("{name}: {} bytes, XXH3 {:016x}", summary.bytes, summary.hash);
    Ok(())
}
