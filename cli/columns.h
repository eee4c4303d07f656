// Lists in the columns that a user names, and output as names or YAML, all of it from the JSON that
// -o json prints, so that every command has them.
#pragma once

#include "cli/verb.h"
#include "common/base/json.h"

#include <ostream>
#include <streambuf>
#include <string>

namespace nsa::cli {

// --columns of list commands.
Option columns_option(std::string example);
// The items as a table of these members: "state", "detail.rank". kInvalidArgument, with the nearest
// name, for a member that no item has.
Status print_columns(Context& context, const nlohmann::json& items, const std::string& columns);

// Text in YAML 1.2, block style. Strings are quoted as in JSON where a plain one would be read as
// something else.
std::string yaml_text(const nlohmann::json& json);
// What the items of an answer are called, one a line: id, folder or sequence number.
// kUnsupported: the answer is no list and no run.
Result<std::string> names_text(const nlohmann::json& json);

// Takes the documents of -o json, and passes each on as YAML or names as soon as it is whole. What
// is no JSON is passed on as it is.
class Rewriter : public std::streambuf {
public:
  Rewriter(std::ostream& out, Output output) : out_(out), output_(output) {}
  // What went wrong with the lines so far.
  const Status& status() const { return status_; }
  Output asked() const { return output_; }

protected:
  int_type overflow(int_type c) override;
  std::streamsize xsputn(const char* text, std::streamsize size) override;
  int sync() override;

private:
  void add_line(const std::string& line);
  void take(const std::string& text);

  std::ostream& out_;
  Output output_;
  std::string line_, document_; // what has begun
  bool first_ = true;
  Status status_;
};

} // namespace nsa::cli
