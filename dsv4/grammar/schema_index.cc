#include "dsv4/grammar/schema_index.h"

#include <algorithm>
#include <charconv>

namespace dsv4 {
namespace {

std::string text_of(const JsonValue& schema, const char* key) {
  const JsonValue* value = schema.find(key);
  return value != nullptr && value->is_string() ? value->text : "";
}

// A URI against its base, as far as ids in one document need it.
std::string joined(const std::string& base, const std::string& uri) {
  if (uri.empty()) return base;
  if (uri.find("://") != uri.npos || uri.starts_with("urn:")) return uri;
  const size_t scheme = base.find("://");
  const size_t path = base.find('/', scheme == base.npos ? 0 : scheme + 3);
  if (uri.starts_with('/')) return base.substr(0, scheme == base.npos ? 0 : path) + uri;
  const size_t folder = base.rfind('/');
  const bool has_folder = folder != base.npos && path != base.npos;
  return (has_folder ? base.substr(0, folder + 1) : scheme == base.npos ? "" : base + "/") + uri;
}

std::string without_percent(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    int byte = 0;
    const char* digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      out += static_cast<char>(byte);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string pointer_step(std::string_view key) {
  std::string out = "/";
  for (const char c : key) out += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return out;
}

bool find_path(const JsonValue& at, const JsonValue& part, std::string& path) {
  if (&at == &part) return true;
  const size_t size = path.size();
  for (size_t i = 0; i < at.items.size(); ++i) {
    path.append("/").append(std::to_string(i));
    if (find_path(at.items[i], part, path)) return true;
    path.resize(size);
  }
  for (const auto& [key, value] : at.members) {
    path += pointer_step(key);
    if (find_path(value, part, path)) return true;
    path.resize(size);
  }
  return false;
}

}  // namespace

SchemaIndex::SchemaIndex(const JsonValue& root) : root_(root) {
  const std::string draft = text_of(root, "$schema");
  const auto names = [&](std::initializer_list<const char*> drafts) {
    return std::any_of(drafts.begin(), drafts.end(),
                       [&](const char* one) { return draft.find(one) != draft.npos; });
  };
  id_key_ = names({"draft-03", "draft-04"}) ? "id" : "$id";
  ref_stands_alone_ = names({"draft-03", "draft-04", "draft-06", "draft-07"});
  // An id inside an unknown keyword is none, as long as a schema has it.
  visit(root, root, "", Place::kSchema, Place::kSchema);
  visit(root, root, "", Place::kSchema, Place::kOther);
}

SchemaIndex::Place SchemaIndex::place_of(Place parent, const std::string& key) {
  const auto is_one = [&](std::initializer_list<std::string_view> keys) {
    return std::find(keys.begin(), keys.end(), key) != keys.end();
  };
  if (parent == Place::kSchemas) return Place::kSchema;
  if (parent == Place::kOther) return Place::kOther;
  if (is_one({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas",
              "dependencies"}))
    return Place::kSchemas;
  const bool schema =
      is_one({"items", "additionalItems", "prefixItems", "contains", "unevaluatedItems",
              "additionalProperties", "propertyNames", "unevaluatedProperties", "not", "if", "then",
              "else", "allOf", "anyOf", "oneOf", "contentSchema", "extends"});
  return schema ? Place::kSchema : Place::kOther;
}

void SchemaIndex::visit(const JsonValue& value, const JsonValue& parent, const std::string& above,
                        Place place, Place ids_in) {
  const JsonValue* resource = &parent;
  std::string base = above;
  const bool has_ids = place == Place::kSchema || ids_in == Place::kOther;
  // Up to draft 7, an id beside a reference does not count either.
  if (has_ids && value.is_object() && !(ref_stands_alone_ && value.find("$ref") != nullptr)) {
    const std::string id = text_of(value, id_key_);
    const size_t hash = std::min(id.find('#'), id.size());
    if (hash > 0) {
      resource = &value;
      base = joined(above, id.substr(0, hash));
      by_uri_.emplace(base, &value);
    }
    if (hash + 1 < id.size()) anchors_.try_emplace({resource, id.substr(hash + 1)}, &value);
    const std::string anchor = text_of(value, "$anchor");
    if (!anchor.empty()) anchors_.try_emplace({resource, anchor}, &value);
  }
  if (resource == &value || &value == &root_) bases_[resource] = base;
  if (resource != &root_) resources_[&value] = resource;
  for (const JsonValue& item : value.items) visit(item, *resource, base, place, ids_in);
  for (const auto& [key, member] : value.members) {
    const bool data = key == "enum" || key == "const" || key == "default" || key == "examples";
    if (!data) visit(member, *resource, base, place_of(place, key), ids_in);
  }
}

const JsonValue* SchemaIndex::resolve(const std::string& reference, const JsonValue& from) const {
  const auto known = resources_.find(&from);
  const JsonValue* resource = known == resources_.end() ? &root_ : known->second;
  const size_t hash = std::min(reference.find('#'), reference.size());
  const std::string fragment = hash < reference.size() ? reference.substr(hash + 1) : "";
  if (hash > 0) {
    const auto base = bases_.find(resource);
    const std::string uri =
        joined(base == bases_.end() ? "" : base->second, reference.substr(0, hash));
    const auto target = by_uri_.find(uri);
    if (target == by_uri_.end()) return nullptr;
    resource = target->second;
  }
  return follow(*resource, without_percent(fragment));
}

const JsonValue* SchemaIndex::follow(const JsonValue& resource, const std::string& fragment) const {
  if (fragment.empty()) return &resource;
  if (fragment[0] != '/') {
    const auto known = anchors_.find({&resource, fragment});
    return known == anchors_.end() ? nullptr : known->second;
  }
  const JsonValue* at = &resource;
  for (size_t begin = 0; begin < fragment.size();) {
    const size_t end = std::min(fragment.find('/', begin + 1), fragment.size());
    std::string key;
    for (size_t i = begin + 1; i < end; ++i) {
      const bool escape = fragment[i] == '~' && i + 1 < end;
      if (escape) ++i;
      key += !escape ? fragment[i] : fragment[i] == '1' ? '/' : '~';
    }
    begin = end;
    const JsonValue* next = at->find(key);
    if (at->is_array()) {
      size_t index = 0;
      const auto read = std::from_chars(key.data(), key.data() + key.size(), index);
      if (read.ec == std::errc() && index < at->items.size()) next = &at->items[index];
    }
    if (next == nullptr) return nullptr;
    at = next;
  }
  return at;
}

std::string SchemaIndex::pointer_of(const JsonValue& part) const {
  std::string path;
  return find_path(root_, part, path) ? path : "";
}

}  // namespace dsv4
