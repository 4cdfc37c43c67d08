// The pieces of JSON that schemas are made of, as automata: strings, numbers, any value.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dsv4/grammar/automaton.h"

namespace dsv4 {

enum class JsonSpaces { kNone, kSome };

class JsonPieces {
 public:
  JsonPieces(AutomatonBuilder& builder, JsonSpaces spaces) : builder_(builder), spaces_(spaces) {}

  NodeId spaces(NodeId from);
  // `min` to `max` characters (-1: any number), each escaped or not.
  NodeId string(NodeId from, int64_t min = 0, int64_t max = -1);
  // A string of plain characters that is none of `keys`.
  NodeId other_key(NodeId from, const std::vector<std::string>& keys);
  NodeId number(NodeId from);
  NodeId integer(NodeId from);
  NodeId any_value(NodeId from);
  NodeId any_object(NodeId from);

 private:
  RuleId character();
  RuleId value_rule();
  NodeId list(NodeId from, char open, char close, bool with_keys);
  NodeId fraction(NodeId from);

  AutomatonBuilder& builder_;
  JsonSpaces spaces_;
  std::optional<RuleId> character_, value_, spaces_rule_;
};

}  // namespace dsv4
