//! The calls into the MPI library, behind an interface that cannot be misused.
//!
//! Three rules make it so:
//!
//! - A [`Comm`] cannot leave the thread that initialised MPI, and MPI is finalised when the last
//!   handle is gone. So all calls come from one thread, between `MPI_Init` and `MPI_Finalize`,
//!   and the level `MPI_THREAD_FUNNELED`, which every library has, is enough.
//! - A call that MPI works on in the background takes its [`Memory`] by value and gives it back
//!   when it is done. So nobody else can look at it meanwhile.
//! - A call that is given up leaks its memory, because MPI may still write there: collectives
//!   cannot be cancelled.

#![allow(unsafe_code, reason = "the calls into the MPI library")]

mod comm;
mod pending;

use std::ffi::{c_char, c_int};
use std::marker::PhantomData;
use std::rc::Rc;

use ::mpi::environment::processor_name;
use ::mpi::{Threading, ffi};

pub(super) use self::comm::Comm;
pub(super) use self::pending::{Memory, Pending};
use crate::{CommError, EngineKind, Result};

const SUCCESS: c_int = ffi::MPI_SUCCESS as c_int;

/// The initialised MPI library; it is finalised when this is dropped.
pub(super) struct Mpi {
    _universe: ::mpi::environment::Universe,
    /// Not [`Send`]: the library belongs to one thread.
    _thread: PhantomData<*const ()>,
}

impl Mpi {
    /// Initialises MPI for calls from this thread. Blocks until every process of the job does so.
    pub(super) fn init() -> Result<Rc<Self>> {
        let (universe, level) =
            ::mpi::initialize_with_threading(Threading::Funneled).ok_or_else(|| {
                let reason = "another part of this program has initialised MPI";
                unavailable(reason, "leave it to the engine, which calls MPI from one thread")
            })?;
        if level < Threading::Funneled {
            let reason = "this MPI library was built without threads (MPI_THREAD_FUNNELED)";
            return Err(unavailable(reason, "install one that was built with them"));
        }
        // SAFETY: a constant of the library, which is initialised.
        return_errors(unsafe { ffi::RSMPI_COMM_WORLD })?;
        Ok(Rc::new(Self { _universe: universe, _thread: PhantomData }))
    }

    /// Returns the communicator of all processes.
    pub(super) fn world(self: &Rc<Self>) -> Result<Comm> {
        // SAFETY: a constant of the library, which is initialised.
        Comm::adopt(self, unsafe { ffi::RSMPI_COMM_WORLD })
    }

    /// Returns the communicator of this process alone.
    pub(super) fn alone(self: &Rc<Self>) -> Result<Comm> {
        // SAFETY: a constant of the library, which is initialised.
        Comm::adopt(self, unsafe { ffi::RSMPI_COMM_SELF })
    }

    /// Returns the name of this machine as MPI knows it.
    pub(super) fn machine_name(&self) -> String {
        processor_name().unwrap_or_default()
    }
}

pub(super) fn unavailable(reason: &str, remedy: &str) -> CommError {
    let (reason, remedy) = (reason.to_owned(), remedy.to_owned());
    CommError::EngineUnavailable { engine: EngineKind::Mpi, reason, remedy }
}

/// Makes an error of a return code.
fn check(call: &'static str, code: c_int) -> Result<()> {
    if code == SUCCESS {
        return Ok(());
    }
    let mut text = [0u8; ffi::MPI_MAX_ERROR_STRING as usize];
    let mut len: c_int = 0;
    // SAFETY: the text has the length that the standard asks for.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast::<c_char>(), &raw mut len) };
    let len = usize::try_from(len).unwrap_or(0).min(text.len());
    let detail = String::from_utf8_lossy(&text[..len]).into_owned();
    Err(CommError::System { what: format!("call {call}"), detail })
}

/// Makes the calls on a communicator return errors, which would end the process otherwise.
fn return_errors(comm: ffi::MPI_Comm) -> Result<()> {
    // SAFETY: a communicator of this library and a constant.
    let code = unsafe { ffi::MPI_Comm_set_errhandler(comm, ffi::RSMPI_ERRORS_RETURN) };
    check("MPI_Comm_set_errhandler", code)
}

fn int(value: usize) -> Result<c_int> {
    c_int::try_from(value)
        .map_err(|_| CommError::Internal { detail: format!("{value} does not fit into MPI's int") })
}

/// Calls `f` when the process ends in good order: at the end of `main` or in `exit`.
pub(super) fn at_exit(f: extern "C" fn()) {
    // SAFETY: a function that lives as long as the program.
    if unsafe { libc::atexit(f) } != 0 {
        tracing::warn!("cannot register the end of MPI; mpirun will report an abnormal exit");
    }
}
