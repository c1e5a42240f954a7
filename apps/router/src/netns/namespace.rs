//! A network namespace of this program.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Output, Stdio};

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// Why this machine or user cannot have a cluster.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    /// The user may not create network namespaces.
    #[error("network namespaces cannot be created: {0}; run the program as root")]
    NotAllowed(io::Error),
    /// A number of nodes that is not supported.
    #[error("a cluster of {0} nodes is not possible; use 1 to 16")]
    Nodes(usize),
    /// A program is missing, or cannot be started.
    #[error("{program} cannot be started: {error}; install it (`ip` is in the package iproute2)")]
    Program {
        /// Its name.
        program: String,
        /// The system's error.
        error: io::Error,
    },
    /// A command failed.
    #[error("{command}: {text}; check the command, and that the kernel has this feature")]
    Refused {
        /// The command.
        command: String,
        /// Its output.
        text: String,
    },
    /// A setting of the kernel or a device was refused.
    #[error("{what}: {error}; check that the kernel has this feature")]
    Setting {
        /// The setting.
        what: String,
        /// The system's error.
        error: io::Error,
    },
}

/// A network namespace. It exists as long as this value, and processes and threads in it.
#[derive(Debug)]
pub struct Namespace(File);

impl Namespace {
    /// A new namespace, in which `lo` is down.
    pub(super) fn new() -> Result<Self, Unavailable> {
        // A thread of its own has the new namespace, and leaves it to the descriptor when it ends.
        let create = || {
            // SAFETY: descriptors remain shared, since `FILES` is not among the flags.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?;
            own()
        };
        let created = std::thread::Builder::new().spawn(create).map(std::thread::JoinHandle::join);
        let created = created.map_err(Unavailable::NotAllowed)?;
        let crashed = |_| Err(io::Error::other("a thread ended early"));
        created.unwrap_or_else(crashed).map(Self).map_err(Unavailable::NotAllowed)
    }

    /// Moves the calling thread into the namespace until the value returned is dropped. Sockets that
    /// the thread opens belong to the namespace, and so do threads and processes that it starts.
    ///
    /// # Errors
    /// The system refused.
    pub fn enter(&self) -> io::Result<Inside> {
        let home = own()?;
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(Inside { home, _not_send: std::marker::PhantomData })
    }

    /// Starts a program in the namespace. It is killed when the value returned is dropped, and when
    /// the calling thread ends.
    ///
    /// # Errors
    /// [`Unavailable::Program`].
    pub fn spawn(&self, mut command: Command) -> Result<Process, Unavailable> {
        self.prepare(&mut command);
        let child = command.spawn().map_err(|error| program(&command, error))?;
        Ok(Process(child))
    }

    /// Runs a command in the namespace, and returns its output. Blanks separate arguments.
    ///
    /// # Errors
    /// It failed.
    pub fn run(&self, line: &str) -> Result<String, Unavailable> {
        let mut words = line.split_whitespace();
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).stdin(Stdio::null());
        self.prepare(&mut command);
        let output = command.output().map_err(|error| program(&command, error))?;
        succeeded(line, &output)?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs commands of the program `ip`, one a line.
    ///
    /// # Errors
    /// One failed.
    pub fn batch(&self, script: &str) -> Result<(), Unavailable> {
        let mut command = Command::new("ip");
        command.args(["-batch", "-"]).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        self.prepare(&mut command);
        let mut child = command.spawn().map_err(|error| program(&command, error))?;
        // When the program ends early, its output has the reason.
        let _ = child.stdin.take().map(|mut stdin| stdin.write_all(script.as_bytes()));
        let output = child.wait_with_output().map_err(|error| program(&command, error))?;
        succeeded(&format!("ip: {}", one_line(script.as_bytes())), &output)
    }

    /// Writes a setting of the kernel, by its path below `/proc/sys/net`.
    ///
    /// # Errors
    /// The kernel refused it.
    pub fn set_kernel(&self, name: &str, value: &str) -> Result<(), Unavailable> {
        let set = || {
            let _inside = self.enter()?;
            fs::write(format!("/proc/sys/net/{name}"), value)
        };
        set().map_err(|error| Unavailable::Setting { what: format!("{name} = {value}"), error })
    }

    /// The path by which `ip` opens the namespace.
    pub(super) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Lets a command run in the namespace, and end with the thread that starts it.
    fn prepare(&self, command: &mut Command) {
        let namespace = self.0.as_raw_fd();
        let enter = move || {
            // SAFETY: the child has the descriptors of its parent, which waits in `spawn` until the
            // program runs. A closed descriptor would fail each test that runs a command.
            let namespace = unsafe { std::os::fd::BorrowedFd::borrow_raw(namespace) };
            move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?;
            let signal = Some(rustix::process::Signal::KILL);
            Ok(rustix::process::set_parent_process_death_signal(signal)?)
        };
        // SAFETY: the closure makes two system calls and does not allocate, as is required between
        // `fork` and `exec`. A child that hangs would be seen by each test that runs a command.
        unsafe { command.pre_exec(enter) };
    }
}

/// Keeps a thread in a namespace. It returns to its own when this is dropped.
#[derive(Debug)]
#[must_use = "the thread leaves the namespace when this is dropped"]
pub struct Inside {
    home: File,
    /// It belongs to a thread.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl Drop for Inside {
    fn drop(&mut self) {
        // Without permission the thread stays where it is.
        let _ = move_into_link_name_space(self.home.as_fd(), Some(LinkNameSpaceType::Network));
    }
}

/// A running program, killed when this is dropped.
#[derive(Debug)]
pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The namespace of the calling thread.
fn own() -> io::Result<File> {
    File::open("/proc/thread-self/ns/net")
}

fn program(command: &Command, error: io::Error) -> Unavailable {
    Unavailable::Program { program: command.get_program().to_string_lossy().into_owned(), error }
}

fn succeeded(command: &str, output: &Output) -> Result<(), Unavailable> {
    if output.status.success() {
        return Ok(());
    }
    let text = [output.stderr.as_slice(), output.stdout.as_slice()].concat();
    let text = format!("{} ({})", one_line(&text), output.status);
    Err(Unavailable::Refused { command: command.to_owned(), text })
}

fn one_line(text: &[u8]) -> String {
    String::from_utf8_lossy(text).split_whitespace().collect::<Vec<_>>().join(" ")
}
