// Where the references of a schema lead: $ref with JSON pointers, $anchor, and $id of the schema or
// of parts of it. In drafts 3 and 4 `id` is what $id is later.
//
// What it does not do: other documents, $dynamicRef.

#pragma once

#include <map>
#include <optional>
#include <string>
#include <unordered_map>

#include "dsv4/chat/json_value.h"

namespace dsv4 {

class SchemaIndex {
 public:
  // `root` must outlive the index.
  explicit SchemaIndex(const JsonValue& root);

  // What `reference` in the schema `from` refers to; null: nothing here.
  const JsonValue* resolve(const std::string& reference, const JsonValue& from) const;
  // The path of a part of the root, for messages; "" where it is the root or no part of it.
  std::string pointer_of(const JsonValue& part) const;
  // Up to draft 7, what stands beside $ref does not count.
  bool ref_stands_alone() const { return ref_stands_alone_; }

 private:
  // What a value of the document is: a schema, an object or list of schemas, or neither, where a
  // pointer may lead nevertheless.
  enum class Place { kSchema, kSchemas, kOther };
  static Place place_of(Place parent, const std::string& key);

  // `ids_in`: ids of schemas alone are read, or of everything.
  void visit(const JsonValue& value, const JsonValue& resource, const std::string& base,
             Place place, Place ids_in);
  const JsonValue* follow(const JsonValue& resource, const std::string& fragment) const;

  const JsonValue& root_;
  const char* id_key_;
  bool ref_stands_alone_;
  std::unordered_map<const JsonValue*, const JsonValue*> resources_;  // of parts not the root's
  std::unordered_map<const JsonValue*, std::string> bases_;           // of resources
  std::map<std::string, const JsonValue*> by_uri_;
  std::map<std::pair<const JsonValue*, std::string>, const JsonValue*> anchors_;
};

}  // namespace dsv4
