//! Writes the seed corpus from real messages: `cargo run --bin seeds` in `fuzz/`. The output is
//! deterministic; commit the changes when the wire format or a program's encoding changes.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (target, name, bytes) in courser_fuzz::seeds::all() {
        let dir = root.join(target);
        std::fs::create_dir_all(&dir)?;
        std::fs::write(dir.join(name), bytes)?;
    }
    Ok(())
}
