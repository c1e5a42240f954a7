@0xb2f4a6c31f0d9e57;
# The service of the benchmark. After a change, compile it to peers.bin as README.md describes.

interface Peers {
  echo @0 (data :Data) -> (data :Data);
  # Answers with what it was sent.

  sink @1 (data :Data) -> (receipt :Data);
  # Takes a large request and answers with a receipt of 32 bytes.
}
