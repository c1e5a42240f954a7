//! Splits the result of a method into its value and its application error.
//!
//! The attribute sees names, and `Answer<T>` may be an alias of a `Result<T, E>`. So the compiler
//! decides, which knows the type: [`Probe::IS_RESULT`] is a constant of the implementation for
//! results where there is one, else that of a trait for all types, and selects an implementation of
//! [`Split`].

use std::marker::PhantomData;

use crate::error::service::NoError;

/// A type that may be a `Result`.
#[derive(Debug)]
pub struct Probe<T>(PhantomData<T>);

impl<T, E> Probe<Result<T, E>> {
    /// See the module.
    pub const IS_RESULT: bool = true;
}

/// The constant of all types, which [`Probe`] hides for results.
pub trait AnyType {
    /// See the module.
    const IS_RESULT: bool = false;
}

impl<T> AnyType for Probe<T> {}

/// A type as a value, or a `Result` as a value and an error.
pub trait Split<const IS_RESULT: bool> {
    /// The value.
    type Value;
    /// The application error.
    type Error;

    /// The outcome.
    fn split(self) -> Result<Self::Value, Self::Error>;
}

impl<T, E> Split<true> for Result<T, E> {
    type Value = T;
    type Error = E;

    #[inline]
    fn split(self) -> Result<T, E> {
        self
    }
}

impl<T> Split<false> for T {
    type Value = T;
    type Error = NoError;

    #[inline]
    fn split(self) -> Result<T, NoError> {
        Ok(self)
    }
}
