//! Servers of both kinds, and the statistics of their methods at the end.

use std::thread::JoinHandle;

use courser::service::MethodStats;
use courser::{EndpointHandle, Nexus, Rpc, Server, Serving};

/// A server of either kind.
pub(crate) enum Running {
    Tasks(Serving),
    Thread { handle: EndpointHandle, thread: JoinHandle<Vec<MethodStats>> },
}

impl Running {
    /// A server, whose handlers are tasks of other threads or run in place, and its address.
    pub(crate) fn tasks(server: Server) -> (String, Running) {
        (server.local_uri(), Running::Tasks(server.serve().unwrap()))
    }

    /// An endpoint on its own thread with what `set_up` adds, and its address.
    pub(crate) fn thread(set_up: impl FnOnce(&mut Rpc) + Send + 'static) -> (String, Running) {
        let nexus = Nexus::bind("udp://127.0.0.1:0").unwrap();
        let uri = nexus.local_uri();
        let (started, has_started) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut rpc = nexus.endpoint().unwrap();
            set_up(&mut rpc);
            started.send(rpc.handle()).unwrap();
            rpc.run().unwrap();
            rpc.method_stats()
        });
        (uri, Running::Thread { handle: has_started.recv().unwrap(), thread })
    }

    /// The statistics at its end.
    pub(crate) fn end(self) -> Vec<MethodStats> {
        match self {
            Running::Tasks(serving) => {
                let handle = serving.handle();
                handle.stop();
                serving.wait().unwrap();
                handle.method_stats()
            }
            Running::Thread { handle, thread } => {
                handle.stop();
                thread.join().unwrap()
            }
        }
    }
}
