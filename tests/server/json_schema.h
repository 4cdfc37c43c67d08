// A checker of JSON against the few keywords of JSON Schema that tests/server/api_schemas.json
// uses: type, const, enum, required, properties, additionalProperties (a schema), items,
// minimum, anyOf, allOf and $ref to its $defs. Another keyword is a failure of its own, so that
// none is skipped silently. The grammars of dsv4/grammar/ cannot be used here: they fix the
// order of keys.

#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace dsv4::test {

class SchemaFile {
 public:
  explicit SchemaFile(const std::string& path)
      : defs_(nlohmann::json::parse(std::ifstream(path))["$defs"]) {}

  const nlohmann::json& defs() const { return defs_; }
  // What is wrong with the value under the definition of this name, or empty.
  std::string wrong(const nlohmann::json& value, const std::string& name) const {
    return wrong(value, defs_.at(name), "");
  }

 private:
  using Json = nlohmann::json;

  static bool is_type(const Json& value, const std::string& type) {
    if (type == "object") return value.is_object();
    if (type == "array") return value.is_array();
    if (type == "string") return value.is_string();
    if (type == "boolean") return value.is_boolean();
    if (type == "null") return value.is_null();
    if (type == "integer") return value.is_number_integer();
    return type == "number" && value.is_number();
  }

  static bool is_any_type(const Json& value, const Json& types) {
    if (types.is_string()) return is_type(value, types);
    return std::any_of(types.begin(), types.end(),
                       [&](const Json& type) { return is_type(value, type); });
  }

  std::string wrong(const Json& value, const Json& schema, const std::string& path) const {
    for (const auto& [keyword, argument] : schema.items()) {
      std::string found = wrong(value, keyword, argument, schema, path);
      if (!found.empty()) return found;
    }
    return "";
  }

  // One keyword of a schema.
  std::string wrong(const Json& value, const std::string& keyword, const Json& argument,
                    const Json& schema, const std::string& path) const {
    const auto report = [&](const std::string& text) {
      return fmt::format("{}: {}, but it is {}", path.empty() ? "the value" : path, text,
                         value.dump().substr(0, 200));
    };
    if (keyword == "$comment") return "";
    if (keyword == "$ref") return wrong(value, definition(argument), path);
    if (keyword == "type")
      return is_any_type(value, argument) ? "" : report("want the type " + argument.dump());
    if (keyword == "const") return value == argument ? "" : report("want " + argument.dump());
    if (keyword == "enum") {
      const bool is_one = std::find(argument.begin(), argument.end(), value) != argument.end();
      return is_one ? "" : report("want one of " + argument.dump());
    }
    if (keyword == "minimum")
      return !value.is_number() || value >= argument ? "" : report("want >= " + argument.dump());
    if (keyword == "required") return missing(value, argument, path);
    if (keyword == "properties") return wrong_members(value, argument, path);
    if (keyword == "additionalProperties") {
      if (schema.contains("properties")) return report("additionalProperties beside properties");
      return wrong_each(value, argument, path, value.is_object());
    }
    if (keyword == "items") return wrong_each(value, argument, path, value.is_array());
    if (keyword == "allOf") {
      for (const Json& one : argument) {
        std::string found = wrong(value, one, path);
        if (!found.empty()) return found;
      }
      return "";
    }
    if (keyword == "anyOf") return wrong_any(value, argument, path);
    return report("the schema has the unknown keyword " + keyword);
  }

  static std::string missing(const Json& value, const Json& names, const std::string& path) {
    if (!value.is_object()) return "";
    for (const Json& name : names) {
      if (!value.contains(name))
        return fmt::format("{}/{} is missing", path, name.get<std::string>());
    }
    return "";
  }

  std::string wrong_members(const Json& value, const Json& schemas, const std::string& path) const {
    if (!value.is_object()) return "";
    for (const auto& [name, schema] : schemas.items()) {
      if (!value.contains(name)) continue;
      std::string found = wrong(value[name], schema, path + "/" + name);
      if (!found.empty()) return found;
    }
    return "";
  }

  std::string wrong_each(const Json& value, const Json& schema, const std::string& path,
                         bool applies) const {
    if (!applies) return "";
    for (const auto& [key, one] : value.items()) {
      std::string found = wrong(one, schema, path + "/" + key);
      if (!found.empty()) return found;
    }
    return "";
  }

  std::string wrong_any(const Json& value, const Json& schemas, const std::string& path) const {
    std::string all;
    for (const Json& schema : schemas) {
      const std::string found = wrong(value, schema, path);
      if (found.empty()) return "";
      all += "; " + found;
    }
    return fmt::format("no branch of anyOf: {}", all.substr(2));
  }

  const Json& definition(const std::string& reference) const {
    return defs_.at(reference.substr(std::string("#/$defs/").size()));
  }

  const Json defs_;
};

}  // namespace dsv4::test
