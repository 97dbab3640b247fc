package bqtest

import (
	"encoding/json"
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strings"
	"time"
)

var (
	selected = regexp.MustCompile(`(?s)SELECT (?:DISTINCT )?(.*)\nFROM |SELECT DISTINCT (.*) FROM `)
	alias    = regexp.MustCompile(`^(.*) AS (\w+)$`)
	ofTable  = regexp.MustCompile("FROM `([^`]+)`")
)

// run answers a statement by what it says of itself in its first line, its list of
// columns, and its conditions as billing/gcp writes them.
func (s *Server) run(sql string, params map[string][]string) (*job, error) {
	if m := ofTable.FindStringSubmatch(sql); m == nil || m[1] != s.Name() {
		return nil, fmt.Errorf("the statement is not of table %s", s.Name())
	}
	for _, p := range regexp.MustCompile(`@(\w+)`).FindAllStringSubmatch(sql, -1) {
		if _, ok := params[p[1]]; !ok {
			return nil, fmt.Errorf("query parameter %q not found", p[1])
		}
	}
	var rows []Row
	for _, r := range s.Rows {
		if s.wanted(sql, params, r) {
			rows = append(rows, r)
		}
	}
	what, _, _ := strings.Cut(strings.TrimPrefix(sql, "-- gpuledger: "), "\n")
	m := selected.FindStringSubmatch(sql)
	if m == nil {
		return nil, fmt.Errorf("no list of columns")
	}
	var list []string
	depth, start := 0, 0
	text := m[1] + m[2]
	for i, c := range text {
		switch {
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == ',' && depth == 0:
			list, start = append(list, strings.TrimSpace(text[start:i])), i+1
		}
	}
	list = append(list, strings.TrimSpace(text[start:]))
	if what == "rows" {
		return s.each(list, rows)
	}
	groups := []string{}
	if _, by, ok := strings.Cut(sql, "GROUP BY "); ok {
		by, _, _ = strings.Cut(by, " ORDER BY")
		groups = strings.Split(by, ", ")
	} else {
		for _, expression := range list {
			groups = append(groups, alias.FindStringSubmatch(expression)[2])
		}
	}
	return s.grouped(list, groups, rows)
}

// wanted applies the conditions.
func (s *Server) wanted(sql string, params map[string][]string, r Row) bool {
	month := monthOf(r)
	for _, c := range []struct {
		condition string
		holds     func() bool
	}{
		{" = @month", func() bool { return month == params["month"][0] }},
		{" IN UNNEST(@months)", func() bool { return slices.Contains(params["months"], month) }},
		{" >= @first", func() bool { return month >= params["first"][0] }},
		{" >= @since", func() bool { return !exportedAt(r).Before(parse(params["since"][0])) }},
	} {
		if strings.Contains(sql, c.condition) && !c.holds() {
			return false
		}
	}
	if strings.Contains(sql, "@services") {
		detail := slices.Contains(params["services"], text(r, "service.id")) || strings.HasPrefix(text(r, "sku.description"), "Commitment")
		for _, c := range credits(r) {
			detail = detail || strings.HasPrefix(text(c, "type"), "COMMITTED_USAGE_DISCOUNT") || text(c, "type") == "FEE_UTILIZATION_OFFSET"
		}
		return detail != strings.Contains(sql, "AND NOT (")
	}
	return true
}

func monthOf(r Row) string {
	if _, ok := r["BillingPeriodStart"]; ok {
		return parse(text(r, "BillingPeriodStart")).Format("200601")
	}
	return text(r, "invoice.month")
}

// exportedAt is when a row came to its partition.
func exportedAt(r Row) time.Time {
	for _, name := range []string{"export_time", "x_ExportTime"} {
		if t := text(r, name); t != "" {
			return parse(t).Truncate(24 * time.Hour)
		}
	}
	return time.Time{}
}

func credits(r Row) (out []Row) {
	list, _ := r["credits"].([]any)
	for _, c := range list {
		out = append(out, c.(map[string]any))
	}
	return out
}

func parse(text string) time.Time {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02 15:04:05 UTC", "2006-01-02 15:04:05.999999-07:00", "2006-01-02 15:04:05.999999Z07:00"} {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UTC()
		}
	}
	panic("bqtest: not a time: " + text)
}

// value finds a column; one in a record follows its name and a point.
func value(r Row, name string) any {
	first, rest, nested := strings.Cut(name, ".")
	v := r[first]
	if !nested || v == nil {
		return v
	}
	return value(v.(map[string]any), rest)
}

func text(r Row, name string) string {
	if v := value(r, name); v != nil {
		return fmt.Sprint(v)
	}
	return ""
}

// field finds a column of the schema.
func (s *Server) field(name string) (Field, error) {
	fields, path := s.Schema, strings.Split(name, ".")
	for i, part := range path {
		at := slices.IndexFunc(fields, func(f Field) bool { return f.Name == part })
		if at < 0 {
			return Field{}, fmt.Errorf("unrecognized name: %s", name)
		}
		if i == len(path)-1 {
			return fields[at], nil
		}
		fields = fields[at].Fields
	}
	return Field{}, nil
}

// each selects columns of every row.
func (s *Server) each(list []string, rows []Row) (*job, error) {
	one := &job{}
	var names []string
	for _, expression := range list {
		m := alias.FindStringSubmatch(expression)
		name, isJSON := strings.CutPrefix(m[1], "TO_JSON_STRING(")
		name = strings.TrimSuffix(name, ")")
		f, err := s.field(name)
		if err != nil {
			return nil, err
		}
		f.Name = m[2]
		if isJSON {
			f = Field{Name: m[2], Type: "STRING"}
		} else if f.Mode == "REPEATED" || f.Type == "RECORD" {
			return nil, fmt.Errorf("column %s is no scalar", name)
		}
		one.fields = append(one.fields, f)
		names = append(names, name)
	}
	for _, r := range rows {
		var cells []any
		for i, name := range names {
			v := value(r, name)
			switch f := one.fields[i]; {
			case strings.HasPrefix(list[i], "TO_JSON_STRING("):
				b, err := json.Marshal(v)
				if err != nil {
					return nil, err
				}
				cells = append(cells, string(b))
			case v == nil:
				cells = append(cells, nil)
			case f.Type == "TIMESTAMP":
				cells = append(cells, micros(parse(fmt.Sprint(v))))
			default:
				cells = append(cells, fmt.Sprint(v))
			}
		}
		one.rows = append(one.rows, cells)
	}
	return one, nil
}

// grouped adds rows up.
func (s *Server) grouped(list, groups []string, rows []Row) (*job, error) {
	one := &job{}
	named := map[string]string{}
	for _, expression := range list {
		m := alias.FindStringSubmatch(expression)
		named[m[2]] = m[1]
		kind := "STRING"
		switch {
		case strings.HasPrefix(m[1], "TIMESTAMP_TRUNC("), strings.HasPrefix(m[1], "MAX("):
			kind = "TIMESTAMP"
		case strings.HasPrefix(m[1], "DATE("):
			kind = "DATE"
		case m[1] == "COUNT(*)":
			kind = "INTEGER"
		}
		one.fields = append(one.fields, Field{Name: m[2], Type: kind})
	}
	members := map[string][]Row{}
	var order []string
	for _, r := range rows {
		var key []string
		for _, g := range groups {
			expression := g
			if n, ok := named[g]; ok {
				expression = n
			}
			v, err := s.evaluate(expression, []Row{r})
			if err != nil {
				return nil, err
			}
			key = append(key, fmt.Sprint(v))
		}
		k := strings.Join(key, "\x00")
		if members[k] == nil {
			order = append(order, k)
		}
		members[k] = append(members[k], r)
	}
	slices.Sort(order)
	for _, k := range order {
		var cells []any
		for _, expression := range list {
			v, err := s.evaluate(alias.FindStringSubmatch(expression)[1], members[k])
			if err != nil {
				return nil, err
			}
			cells = append(cells, v)
		}
		one.rows = append(one.rows, cells)
	}
	return one, nil
}

var (
	sumOf    = regexp.MustCompile(`^CAST\(SUM\(ROUND\(CAST\(CAST\((\w+) AS STRING\) AS BIGNUMERIC\), 24\)\) AS STRING\)$`)
	isNull   = regexp.MustCompile(`^([\w.]+) IS NULL$`)
	function = regexp.MustCompile(`^(DATE|MAX|FORMAT_TIMESTAMP)\((?:'%Y%m', )?(\w+)\)$`)
)

// evaluate is an expression's value for rows of one group.
func (s *Server) evaluate(expression string, rows []Row) (any, error) {
	first := rows[0]
	switch {
	case expression == "COUNT(*)":
		return fmt.Sprint(len(rows)), nil
	case strings.HasPrefix(expression, "TIMESTAMP_TRUNC("):
		t := parse(text(first, "usage_start_time"))
		return micros(time.Date(t.Year(), t.Month(), 1, 0, 0, 0, 0, time.UTC)), nil
	case expression == "cost < 0":
		return strings.HasPrefix(text(first, "cost"), "-"), nil
	case strings.Contains(expression, "FROM UNNEST(credits) AS c"):
		sum := new(big.Rat)
		for _, r := range rows {
			for _, c := range credits(r) {
				sum.Add(sum, number(c, "amount"))
			}
		}
		return sum.FloatString(24), nil
	}
	if m := sumOf.FindStringSubmatch(expression); m != nil {
		sum, any := new(big.Rat), false
		for _, r := range rows {
			if value(r, m[1]) != nil {
				sum.Add(sum, number(r, m[1]))
				any = true
			}
		}
		if !any {
			return nil, nil
		}
		return sum.FloatString(24), nil
	}
	if m := isNull.FindStringSubmatch(expression); m != nil {
		return value(first, m[1]) == nil, nil
	}
	if m := function.FindStringSubmatch(expression); m != nil {
		switch t := text(first, m[2]); m[1] {
		case "DATE":
			return parse(t).Format(time.DateOnly), nil
		case "FORMAT_TIMESTAMP":
			return parse(t).Format("200601"), nil
		}
		var newest time.Time
		for _, r := range rows {
			if t := text(r, m[2]); t != "" && parse(t).After(newest) {
				newest = parse(t)
			}
		}
		if newest.IsZero() {
			return nil, nil
		}
		return micros(newest), nil
	}
	if _, err := s.field(expression); err != nil {
		return nil, err
	}
	if v := value(first, expression); v != nil {
		return fmt.Sprint(v), nil
	}
	return nil, nil
}

func number(r Row, name string) *big.Rat {
	n, ok := new(big.Rat).SetString(text(r, name))
	if !ok {
		panic("bqtest: not a number: " + text(r, name))
	}
	return n
}
