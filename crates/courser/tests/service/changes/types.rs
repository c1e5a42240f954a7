//! The types of the changed methods, as the old and the new programs have them.

/// A value of a type, and a number that depends on all fields of a value.
pub trait Sample {
    fn sample() -> Self;
    fn sum(&self) -> i64;
}

/// A part of the number. A default is noticed.
pub trait Part {
    fn part(&self) -> i64;
}

macro_rules! parts {
    ($($number:ty)*) => {
        $(impl Part for $number {
            fn part(&self) -> i64 {
                *self as i64
            }
        })*
    };
}

parts! { u32 i32 u64 }

impl Part for Option<u32> {
    fn part(&self) -> i64 {
        self.map_or(5, i64::from)
    }
}

macro_rules! sample {
    ($name:ident $($field:ident = $value:expr),*) => {
        impl Sample for $name {
            fn sample() -> Self {
                $name { $($field: $value),* }
            }
            fn sum(&self) -> i64 {
                let weight = |field| if field == "a" { 10 } else { 1 };
                [$(self.$field.part() * weight(stringify!($field))),*].iter().sum()
            }
        }
    };
}

macro_rules! serde_types {
    ($($name:ident { $($(#[$attribute:meta])* $field:ident: $type:ty = $value:expr),* })*) => {
        use serde::{Deserialize, Serialize};

        #[allow(unused_imports)]
        use crate::changes::types::{Part, Sample};

        $(
            #[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
            pub struct $name { $($(#[$attribute])* pub $field: $type),* }
            sample!($name $($field = $value),*);
        )*
    };
}

macro_rules! prost_types {
    ($($name:ident { $(#[$attribute:meta] $field:ident: $type:ty = $value:expr),* })*) => {
        #[allow(unused_imports)]
        use crate::changes::types::{Part, Sample};

        $(
            #[derive(Clone, PartialEq, prost::Message)]
            pub struct $name { $(#[$attribute] pub $field: $type),* }
            sample!($name $($field = $value),*);
        )*
    };
}

macro_rules! rkyv_types {
    ($($name:ident { $($field:ident: $type:ty = $value:expr),* })*) => {
        #[allow(unused_imports)]
        use crate::changes::types::{Part, Sample};

        $(
            #[derive(Clone, PartialEq, Debug, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
            pub struct $name { $(pub $field: $type),* }
            sample!($name $($field = $value),*);
        )*
    };
}

pub mod by_serde {
    pub mod old {
        serde_types! {
            Row { a: u32 = 1 }
            Moved { a: u32 = 1, b: u32 = 2 }
            Retyped { a: u32 = 1 }
            Wider { a: u32 = 1 }
            Defaulted { a: u32 = 1 }
            Required { a: u32 = 1 }
            Shortened { a: u32 = 1, b: u32 = 2 }
            Renamed { a: u32 = 1, b: u32 = 2 }
        }

        #[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
        pub enum More {
            A,
            B(u32),
        }

        #[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
        pub enum Less {
            A,
            C,
            B(u32),
        }

        pub const ADDED: More = More::A;
        pub const REMOVED: Less = Less::C;
    }

    pub mod new {
        serde_types! {
            Line { a: u32 = 1 }
            Moved { b: u32 = 2, a: u32 = 1 }
            Retyped { a: i32 = -1 }
            Wider { a: u64 = 1 << 40 }
            Defaulted { a: u32 = 1, #[serde(default)] b: Option<u32> = Some(3) }
            Required { b: u32 = 3, a: u32 = 1 }
            Shortened { a: u32 = 1 }
            Renamed { a: u32 = 1, c: u32 = 3 }
        }

        #[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
        pub enum More {
            A,
            C,
            B(u32),
        }

        #[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
        pub enum Less {
            A,
            B(u32),
        }

        pub const ADDED: More = More::C;
        pub const REMOVED: Less = Less::A;
    }
}

pub mod by_prost {
    pub mod old {
        prost_types! {
            Row { #[prost(uint32, tag = "1")] a: u32 = 1 }
            Moved { #[prost(uint32, tag = "1")] a: u32 = 1, #[prost(uint32, tag = "2")] b: u32 = 2 }
            Retyped { #[prost(uint32, tag = "1")] a: u32 = 1 }
            Wider { #[prost(uint32, tag = "1")] a: u32 = 1 }
            Defaulted { #[prost(uint32, tag = "1")] a: u32 = 1 }
            Required { #[prost(uint32, tag = "1")] a: u32 = 1 }
            Shortened { #[prost(uint32, tag = "1")] a: u32 = 1, #[prost(uint32, tag = "2")] b: u32 = 2 }
            Renamed { #[prost(uint32, tag = "1")] a: u32 = 1, #[prost(uint32, tag = "2")] b: u32 = 2 }
        }
    }

    pub mod new {
        prost_types! {
            Line { #[prost(uint32, tag = "1")] a: u32 = 1 }
            Moved { #[prost(uint32, tag = "2")] b: u32 = 2, #[prost(uint32, tag = "1")] a: u32 = 1 }
            Retyped { #[prost(int32, tag = "1")] a: i32 = -1 }
            Wider { #[prost(uint64, tag = "1")] a: u64 = 1 << 40 }
            Defaulted {
                #[prost(uint32, tag = "1")] a: u32 = 1,
                #[prost(uint32, optional, tag = "2")] b: Option<u32> = Some(3)
            }
            Required { #[prost(uint32, tag = "2")] b: u32 = 3, #[prost(uint32, tag = "1")] a: u32 = 1 }
            Shortened { #[prost(uint32, tag = "1")] a: u32 = 1 }
            Renamed { #[prost(uint32, tag = "1")] a: u32 = 1, #[prost(uint32, tag = "2")] c: u32 = 3 }
        }
    }
}

pub mod by_rkyv {
    pub mod old {
        rkyv_types! {
            Row { a: u32 = 1 }
            Moved { a: u32 = 1, b: u32 = 2 }
            Wider { a: u32 = 1 }
            Required { a: u32 = 1 }
        }
    }

    pub mod new {
        rkyv_types! {
            Line { a: u32 = 1 }
            Moved { b: u32 = 2, a: u32 = 1 }
            Wider { a: u64 = 1 << 40 }
            Required { b: u32 = 3, a: u32 = 1 }
        }
    }
}
