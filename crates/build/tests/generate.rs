//! Code of small files, and errors of wrong ones.

use std::fs;

use courser_build::{Builder, Error, configure};
use tempfile::TempDir;

/// Generates the code of a file `test.proto`, with these settings.
fn generate(proto: &str, settings: impl FnOnce(Builder) -> Builder) -> Result<String, Error> {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("test.proto");
    fs::write(&file, proto).unwrap();
    let builder = configure().out_dir(folder.path()).rerun_if_changed(false);
    settings(builder).compile(&[file], &[folder.path()])?;
    let package = proto.lines().find_map(|line| line.strip_prefix("package "));
    let name = package.map_or("_", |name| name.trim_end_matches(';'));
    Ok(fs::read_to_string(folder.path().join(format!("{name}.rs"))).unwrap())
}

fn error(proto: &str, settings: impl FnOnce(Builder) -> Builder) -> String {
    match generate(proto, settings) {
        Ok(code) => panic!("{code}"),
        Err(error) => {
            let text = error.to_string();
            assert_eq!(text, format!("{error:?}"), "a build script prints it");
            text
        }
    }
}

const SHOP: &str = r#"syntax = "proto3";
package shop.v1;

import "google/protobuf/empty.proto";

// Takes orders.
service Orders {
  // Stores an order.
  //
  // Twice is once.
  rpc PutOrder(Order) returns (Receipt) { option idempotency_level = IDEMPOTENT; }
  rpc ListAll(google.protobuf.Empty) returns (stream Order) { option idempotency_level = NO_SIDE_EFFECTS; }
  rpc Load(stream Order) returns (google.protobuf.Empty) { option deprecated = true; }
  rpc Chat(stream Order) returns (stream Receipt.Line);
  rpc Seen(Order) returns (google.protobuf.Empty);
  rpc Connect(Order) returns (Order);
  rpc Type(Order) returns (Order);
}

message Order { int32 number = 1; }
message Receipt {
  message Line { string text = 1; }
  repeated Line lines = 1;
}
"#;

/// The lines of the trait.
fn lines(code: &str) -> Vec<&str> {
    let start = code.find("/// Takes orders.").expect("the trait");
    code[start..].lines().map(str::trim).collect()
}

#[test]
fn each_kind_of_method_is_generated_with_its_comments_and_options() {
    let code = generate(SHOP, |builder| builder).unwrap();
    let outcome = |value: &str| format!("::core::result::Result<{value}, ::courser::grpc::Status>");
    let stream = |item: &str| format!("impl ::courser::service::Stream<Item = {}>", outcome(item));
    let incoming = "requests: ::courser::service::Incoming<Order>";
    let expected = [
        "/// Takes orders.".to_owned(),
        r#"#[::courser::service(codec = Prost, name = "shop.v1.Orders", messages = CourserMessagesOfOrders)]"#.to_owned(),
        "pub trait Orders {".to_owned(),
        "/// Stores an order.".to_owned(),
        "///".to_owned(),
        "/// Twice is once.".to_owned(),
        "#[idempotent]".to_owned(),
        format!("async fn put_order(&self, request: Order) -> {};", outcome("Receipt")),
        format!("fn list_all(&self) -> {};", stream("Order")),
        "#[deprecated]".to_owned(),
        format!("async fn load(&self, {incoming}) -> {};", outcome("()")),
        format!("fn chat(&self, {incoming}) -> {};", stream("receipt::Line")),
        format!("async fn seen(&self, request: Order) -> {};", outcome("()")),
        format!("async fn connect_(&self, request: Order) -> {};", outcome("Order")),
        format!("async fn r#type(&self, request: Order) -> {};", outcome("Order")),
        "}".to_owned(),
    ];
    assert_eq!(lines(&code), expected);
}

#[test]
fn settings_are_for_a_method_a_service_or_all() {
    let code = generate(SHOP, |builder| {
        builder
            .error_type("crate::Failure")
            .courser_path("crate::rpc")
            .context(".shop.v1.Orders.ListAll")
            .context("shop.v1.Orders.Connect")
            .one_way("shop.v1.Orders.Seen")
            .type_attribute("shop.v1.Order", "#[derive(Eq)]")
            .field_attribute("number", "#[doc(alias = \"id\")]")
    })
    .unwrap();
    let lines = lines(&code);
    let has = |line: &str| assert!(lines.contains(&line), "{line} is not in {lines:#?}");
    has(
        r#"#[crate::rpc::service(codec = Prost, name = "shop.v1.Orders", messages = CourserMessagesOfOrders, crate = crate::rpc)]"#,
    );
    assert!(!code.contains("::courser::"), "{code}");
    has("#[idempotent]");
    has("fn list_all(&self, cx: crate::rpc::service::CallContext) -> impl \
         crate::rpc::service::Stream<Item = ::core::result::Result<Order, crate::Failure>>;");
    has("async fn connect_(&self, cx: crate::rpc::service::CallContext, request: Order) -> \
         ::core::result::Result<Order, crate::Failure>;");
    has("#[oneway]");
    has("async fn seen(&self, request: Order);");
    assert!(code.contains("#[derive(Eq)]") && code.contains("#[doc(alias = \"id\")]"));
    assert_eq!(lines.iter().filter(|line| **line == "#[idempotent]").count(), 1);

    let all = generate(SHOP, |builder| builder.context(".")).unwrap();
    assert_eq!(all.matches("cx: ::courser::service::CallContext").count(), 7);
    let service = generate(SHOP, |builder| builder.context("shop.v1.Orders")).unwrap();
    assert_eq!(service, all);
}

#[test]
fn a_file_without_a_package_has_a_service_without_one() {
    let proto = "syntax = \"proto3\";\nservice S { rpc Get(M) returns (M); }\nmessage M {}\n";
    let code = generate(proto, |builder| builder.context("S.Get")).unwrap();
    assert!(code.contains(r#"name = "S", messages"#) && code.contains("cx: "), "{code}");
}

#[test]
fn wrong_files_are_reported_with_file_line_and_column() {
    let unknown = SHOP.replace("rpc PutOrder(Order)", "rpc PutOrder(Ordre)");
    let text = error(&unknown, |builder| builder);
    assert!(text.starts_with("test.proto:11:16: ") && text.contains("Ordre"), "{text}");
    let text = error("syntax = \"proto3\";\nmessage { }\n", |builder| builder);
    assert!(text.starts_with("test.proto:2:9: "), "{text}");
    let text = error("syntax = \"proto3\";\nimport \"other.proto\";\n", |builder| builder);
    assert!(text.contains("test.proto:2:1") && text.contains("other.proto"), "{text}");

    let missing = configure().compile(&["no/such.proto"], &["no"]).unwrap_err().to_string();
    assert!(
        missing.contains("no/such.proto") && missing.contains("; correct the file"),
        "{missing}"
    );
}

#[test]
fn services_that_cannot_be_generated_are_reported_with_their_places() {
    let twice = SHOP.replace("rpc Seen", "rpc put_order");
    let text = error(&twice, |builder| builder);
    assert!(text.starts_with("test.proto:15:3: two methods"), "{text}");

    let taken = format!("{SHOP}\nmessage Orders_Client {{}}\nenum LocalOrders {{ A = 0; }}\n");
    let text = error(&taken, |builder| builder);
    assert!(text.contains("test.proto:7:1: `OrdersClient` is generated"), "{text}");
    assert!(text.contains("test.proto:7:1: `LocalOrders` is generated"), "{text}");

    // As prost makes names of types, and those of another service.
    let taken = SHOP.replace("service Orders", "service KVStore");
    let text = error(&format!("{taken}\nmessage KVStoreClient {{}}\n"), |builder| builder);
    assert!(text.contains("`KvStoreClient` is generated"), "{text}");
    let text = error(&format!("{SHOP}\nservice LocalOrders {{}}\n"), |builder| builder);
    assert!(text.contains("and for another service of the package"), "{text}");
    let context = SHOP.replace("rpc PutOrder(Order)", "rpc PutOrder(CallContext)");
    let text = error(&format!("{context}\nmessage CallContext {{}}\n"), |builder| builder);
    assert!(text.contains("test.proto:11:3: `CallContext` is the name"), "{text}");
    let text = error(SHOP, |builder| builder.extern_path("shop.v1.Order", "crate::Order"));
    assert!(text.starts_with("prost-build refuses a setting: "), "{text}");

    let long = SHOP.replace("package shop.v1", &format!("package {}", "x".repeat(100)));
    let text = error(&long, |builder| builder);
    assert!(
        text.starts_with("test.proto:7:1: a service has a name of at most 100 bytes"),
        "{text}"
    );

    let answers = error(SHOP, |builder| builder.one_way("shop.v1.Orders.Connect"));
    assert!(answers.starts_with("test.proto:16:3: a one-way method returns"), "{answers}");
    let streams = error(SHOP, |builder| builder.one_way("shop.v1.Orders.Load"));
    assert!(streams.starts_with("test.proto:13:3: a one-way method has no stream"), "{streams}");
}

#[test]
fn a_setting_for_a_method_that_is_not_there_is_refused() {
    for name in ["shop.v1.Orders.Put", "Orders", "shop.v1", ""] {
        let text = error(SHOP, |builder| builder.context(name));
        assert!(text.contains("Builder::context") && text.contains(&format!("`{name}`")), "{text}");
    }
    assert!(error(SHOP, |builder| builder.one_way("Seen")).contains("Builder::one_way"));
}

/// Two files, the first of which imports the second.
fn importing(settings: impl FnOnce(Builder) -> Builder) -> (TempDir, Result<(), Error>) {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("test.proto");
    let other = SHOP.replace("package shop.v1", "package other").replace("Seen", "put_order");
    fs::write(folder.path().join("other.proto"), other).unwrap();
    let proto = "syntax = \"proto3\";\npackage own;\nimport \"other.proto\";\n\
                 service S { rpc Get(other.Order) returns (other.Order); }\n";
    fs::write(&file, proto).unwrap();
    let builder = settings(configure().out_dir(folder.path()).rerun_if_changed(false));
    let compiled = builder.compile(&[file], &[folder.path()]);
    (folder, compiled)
}

#[test]
fn messages_of_imported_files_are_generated_and_their_services_neither_generated_nor_checked() {
    // Two of its methods have one name in snake case.
    let (folder, compiled) = importing(|builder| builder.context("own.S"));
    compiled.unwrap();
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    assert!(read("own.rs").contains("trait S "), "{}", read("own.rs"));
    let other = read("other.rs");
    assert!(other.contains("struct Order") && !other.contains("trait Orders"), "{other}");
    let text = importing(|builder| builder.context("other.Orders")).1.unwrap_err().to_string();
    assert!(text.contains("`other.Orders`") && text.contains("files to compile"), "{text}");
}

#[test]
fn descriptors_are_written_and_the_setting_of_protoc_is_refused() {
    let descriptors = TempDir::new().unwrap();
    let path = descriptors.path().join("set.bin");
    let (_folder, compiled) = importing(|builder| builder.file_descriptor_set_path(&path));
    compiled.unwrap();
    let bytes = fs::read(&path).unwrap();
    for name in ["test.proto", "other.proto", "google/protobuf/empty.proto", "Orders"] {
        let mut found = bytes.windows(name.len());
        assert!(found.any(|part| part == name.as_bytes()), "{name} is missing");
    }
    let set = |types: &mut courser_build::prost_build::Config| {
        types.file_descriptor_set_path("set.bin");
    };
    let text = error(SHOP, |builder| builder.types(set));
    assert!(text.contains("Builder::file_descriptor_set_path"), "{text}");
    let unwritten = |builder: Builder| builder.file_descriptor_set_path("/no/such/folder/set.bin");
    assert!(error(SHOP, unwritten).starts_with("the code was not written"));
}
