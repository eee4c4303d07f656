// Prints lists in the columns that a user names, and output as names or YAML. All of it is
// converted from the JSON of -o json, so that every command offers it.
#pragma once

#include "cli/verb.h"
#include "common/base/json.h"

#include <ostream>
#include <streambuf>
#include <string>

namespace nsa::cli {

// The option --columns of list commands.
Option columns_option(std::string example);
// Prints the items as a table of these members, such as "state" or "detail.rank". If no item has a
// member, the error kInvalidArgument names the nearest one.
Status print_columns(Context& context, const nlohmann::json& items, const std::string& columns);

// Returns YAML 1.2 text in block style. A string is quoted as in JSON if YAML would read it as
// something else.
std::string yaml_text(const nlohmann::json& json);
// Returns the names of an answer's items, one a line: id, folder or sequence number. Error:
// kUnsupported if the answer is neither a list nor a run.
Result<std::string> names_text(const nlohmann::json& json);

// Reads the documents of -o json, and passes each one on as YAML or names as soon as it is
// complete. Text that is not JSON passes unchanged.
class Rewriter : public std::streambuf {
public:
  Rewriter(std::ostream& out, Output output) : out_(out), output_(output) {}
  // Returns the first error in the lines so far.
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
  std::string line_, document_; // the unfinished line and document
  bool first_ = true;
  Status status_;
};

} // namespace nsa::cli
