//! The smallest load client in safe Rust, as a measure for Workbench's: one thread per stream, a time for each token.
//!
//!     rustc -O -o sse_client sse_client.rs && ./sse_client http://127.0.0.1:8000 STREAMS REQUESTS TOKENS
//!
//! It does what sse_client.c does, without a library for polling, and prints the same.
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Instant;

fn stream(address: &str, next: &AtomicUsize, wanted: usize, tokens: usize) -> std::io::Result<(Vec<f64>, Vec<f64>)> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    let mut reader = BufReader::with_capacity(65536, socket.try_clone()?);
    let (mut ttfts, mut gaps, mut line) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= wanted {
            return Ok((ttfts, gaps));
        }
        let body = format!(
            "{{\"model\":\"m\",\"stream\":true,\"max_tokens\":{tokens},\
             \"messages\":[{{\"role\":\"user\",\"content\":\"[{number:012}] hello\"}}]}}"
        );
        let text = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut last = Instant::now();
        let mut first = true;
        socket.write_all(text.as_bytes())?;
        loop {
            line.clear();
            if reader.read_until(b'\n', &mut line)? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            if line == b"0\r\n" {
                reader.read_until(b'\n', &mut line)?;
                break;
            }
            let key = b"\"content\":\"";
            if !line.starts_with(b"data: {") {
                continue;
            }
            if let Some(at) = line.windows(key.len()).position(|part| part == key) {
                if line[at + key.len()] != b'"' {
                    let now = Instant::now();
                    let list = if first { &mut ttfts } else { &mut gaps };
                    list.push((now - last).as_secs_f64() * 1e3);
                    (first, last) = (false, now);
                }
            }
        }
    }
}

fn told(name: &str, values: &mut [f64]) -> String {
    values.sort_by(f64::total_cmp);
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    format!(", \"mean_{name}_ms\": {mean:.6}, \"p99_{name}_ms\": {:.6}", values[values.len() * 99 / 100])
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let number = |at: usize| words[at].parse::<usize>().expect("STREAMS REQUESTS TOKENS are numbers");
    let (address, wanted, tokens) = (words[1].replace("http://", ""), number(3), number(4));
    let (next, began) = (Arc::new(AtomicUsize::new(0)), Instant::now());
    let threads: Vec<_> = (0..number(2))
        .map(|_| {
            let (address, next) = (address.clone(), next.clone());
            std::thread::spawn(move || stream(&address, &next, wanted, tokens).expect("the stream failed"))
        })
        .collect();
    let (mut ttfts, mut gaps) = (Vec::new(), Vec::new());
    for thread in threads {
        let (some, more) = thread.join().expect("a stream failed");
        ttfts.extend(some);
        gaps.extend(more);
    }
    let (took_s, output) = (began.elapsed().as_secs_f64(), ttfts.len() + gaps.len());
    print!(
        "{{\"model_id\": \"m\", \"completed\": {wanted}, \"duration\": {took_s:.6}, \"total_output_tokens\": {output}, \
         \"output_throughput\": {:.3}, \"request_throughput\": {:.3}",
        output as f64 / took_s,
        wanted as f64 / took_s
    );
    println!("{}{}}}", told("ttft", &mut ttfts), told("itl", &mut gaps));
}
